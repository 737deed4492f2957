/* A private mount namespace in which the job keeps its identity. */
#ifndef PGPU_LAUNCHER_NAMESPACE_H
#define PGPU_LAUNCHER_NAMESPACE_H

/* Enter a new mount namespace: directly as root, otherwise inside a user namespace that maps this user to
 * itself, so that the job keeps its identity. Mounts made here do not reach the host; later mounts of the
 * host still arrive. Gives up where the kernel forbids it. */
void enter_private_namespace(void);

#endif
