/* The job's view of the file system: the host's, with /.pgpu in it and the shims over the driver's libraries.
 */
#ifndef PGPU_LAUNCHER_VIEW_H
#define PGPU_LAUNCHER_VIEW_H

#include "options.h"

/* Where things lie while the view is being built: the launcher stands in a scratch tmpfs that has both roots
 * in it. */
#define OLD_ROOT "/oldroot"
#define NEW_ROOT "/newroot"
#define SCRATCH  "/scratch"

/* Enter a new mount namespace: directly as root, otherwise inside a user namespace that maps this user to
 * itself, so that the job keeps its identity. Mounts made here do not reach the host; later mounts of the
 * host still arrive. Gives up where the kernel forbids it. */
void enter_private_namespace(void);

/* Build the view and enter it, in the current directory if the view has it. Must be in a private mount
 * namespace. Returns whether the slice's ld.so.preload is in force; where it is not, the caller sets
 * LD_PRELOAD. */
bool enter_view(const struct options *options);

/* Bind one host path over another inside the new root and restrict it. `extra_flags`: MS_RDONLY and the like.
 */
void bind_over(const char *source, const char *target, unsigned long extra_flags);

/* Write `root` and then `path` into a buffer of PATH_MAX bytes; gives up where they don't fit. */
void join_path(char *buffer, const char *root, const char *path);

/* Make an empty file, or leave the one that is there. */
void touch(const char *path);

#endif
