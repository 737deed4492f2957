/* Taking on the identity of the job's user, where root starts the job for another user. */
#ifndef PGPU_LAUNCHER_CREDENTIALS_H
#define PGPU_LAUNCHER_CREDENTIALS_H

/* Take on `UID:GID:GROUP,GROUP…` for good. A user other than root keeps no capability, cannot gain one from
 * any file (no_new_privs: the view lays files over the machine's, which no privileged program should have to
 * trust), and gets no descriptor and no key of ours. Gives up unless all of it is in force. */
void become(const char *identity);

/* Access files with this user's permissions, without capabilities, until `see_as_root`; descriptors that are
 * open stay usable. */
void see_as(const char *identity);
void see_as_root(void);

/* Set a resource limit, `RESOURCE:SOFT:HARD`, or as much of it as this process may. Before `become`: a user
 * at the limit of processes gets no further one. */
void take_limit(const char *text);

/* Take on a file mode mask, written in octal. */
void take_mask(const char *octal);

#endif
