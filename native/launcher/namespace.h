/* A private mount namespace in which the job keeps its identity. */
#ifndef PGPU_LAUNCHER_NAMESPACE_H
#define PGPU_LAUNCHER_NAMESPACE_H

/* Enter a new mount namespace: as root directly, as another user inside a user namespace that maps this user
 * to itself, so that the job is who it was. Nothing mounted here reaches the host; what the host mounts later
 * still arrives. Gives up where the kernel forbids it. */
void enter_private_namespace(void);

#endif
