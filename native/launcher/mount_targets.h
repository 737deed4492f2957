/* Names to mount over, on a machine that has no such file. */
#ifndef PGPU_LAUNCHER_MOUNT_TARGETS_H
#define PGPU_LAUNCHER_MOUNT_TARGETS_H

#include <stdbool.h>

#include "options.h"

/* Make every missing path of `wanted` an empty file in the new root, whatever its directory allows. What
 * exists is left alone. False where the kernel cannot; errno says why. */
bool make_appear(const struct pair *wanted, int count);

#endif
