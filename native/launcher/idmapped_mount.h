/* Mounts in which one user's files alone have owners: root may make nothing there and passes no closed door.
 */
#ifndef PGPU_LAUNCHER_IDMAPPED_MOUNT_H
#define PGPU_LAUNCHER_IDMAPPED_MOUNT_H

#include <sys/types.h>

/* Return a mount of all that lies at and below `source`, which is attached nowhere yet.
 *
 * In it only files of `user` and of `owner` have an owner that the kernel believes; the capabilities of
 * whoever is root do not count for the files of others, and root's own number has no place, so that nothing
 * of root's can be made. What the modes give to everybody is not changed, but that files of others cannot be
 * written. Files of root's, if it is the `owner`, are shown as another number's. `name` is for the report;
 * gives up where a file system cannot. */
int mapped_tree(int source, uid_t user, uid_t owner, const char *name);

void attach_tree(int tree, const char *target);

#endif
