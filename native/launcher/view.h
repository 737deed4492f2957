/* The job's view of the file system: the host's, with /.pgpu in it and the shims over the driver's libraries.
 */
#ifndef PGPU_LAUNCHER_VIEW_H
#define PGPU_LAUNCHER_VIEW_H

#include "options.h"

/* Enter a new mount namespace: directly as root, otherwise inside a user namespace that maps this user to
 * itself, so that the job keeps its identity. Mounts made here do not reach the host; later mounts of the
 * host still arrive. Gives up where the kernel forbids it. */
void enter_private_namespace(void);

/* Build the view and enter it, in the current directory if the view has it. Must be in a private mount
 * namespace. Returns whether the slice's ld.so.preload is in force; where it is not, the caller sets
 * LD_PRELOAD. */
bool enter_view(const struct options *options);

/* Path of a file of the host while the view is built, when `/` is the new root and the host's the current
 * directory. */
const char *on_host(const char *path);

/* Write `directory` and then `name` into a buffer of PATH_MAX bytes; gives up where they don't fit. */
void join_path(char *buffer, const char *directory, const char *name);

/* Make an empty file, or leave the one that is there. */
void touch(const char *path);

#endif
