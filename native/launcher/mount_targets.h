/* Names to mount over, on a machine that has no such file. */
#ifndef PGPU_LAUNCHER_MOUNT_TARGETS_H
#define PGPU_LAUNCHER_MOUNT_TARGETS_H

#include <stdbool.h>

#include "options.h"

/* Directory of the new root for the layers below overlays, which the slice is mounted over later. */
#define LAYERS "/.pgpu"

/* Read the mount points of the host, before the view has its own. */
void read_mount_points(void);

/* Create every missing path of `wanted` as an empty file in the new root, even in a directory that is not
 * writable. Existing files are not changed. False where the kernel refuses; errno has the reason. */
bool make_appear(const struct pair *wanted, int count);

#endif
