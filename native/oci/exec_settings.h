/* What a process that joins a container has to know of the container's lease. */
#ifndef PGPU_OCI_EXEC_SETTINGS_H
#define PGPU_OCI_EXEC_SETTINGS_H

/* Add the lease's settings to the process that `runc exec` is about to start, whose description the words
 * name by --process. The engine calls its runtime in the bundle's directory, where `create` left a link to
 * them; where there is none, or anything looks unlike what is known here, the description stays as it is, and
 * the shim keeps the process to its lease all the same. */
void add_settings(char **words);

#endif
