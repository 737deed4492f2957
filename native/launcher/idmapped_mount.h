/* Mounts in which one user's files alone have owners: root may make nothing there and passes no closed door.
 */
#ifndef PGPU_LAUNCHER_IDMAPPED_MOUNT_H
#define PGPU_LAUNCHER_IDMAPPED_MOUNT_H

#include <sys/types.h>

/* Return a detached, id-mapped mount of everything at and below `source`.
 *
 * In it only files of `user` and of `owner` have a mapped owner; the capabilities of a root process do not
 * apply to the files of other users, and uid 0 is not mapped, so root can create nothing there. Permissions
 * for "others" still apply, except that files of other users cannot be written. Files of root, if it is the
 * `owner`, appear as another uid's. `name` is for the report; gives up where the file system does not support
 * id-mapped mounts. */
int mapped_tree(int source, uid_t user, uid_t owner, const char *name);

void attach_tree(int tree, const char *target);

#endif
