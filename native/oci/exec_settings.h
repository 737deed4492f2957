/* The settings of a container's lease, for a process that joins the container. */
#ifndef PGPU_OCI_EXEC_SETTINGS_H
#define PGPU_OCI_EXEC_SETTINGS_H

/* Add the lease's settings to the process that `runc exec` is about to start; the option --process names its
 * description. The engine calls its runtime in the bundle's directory, where `create` left a link to the
 * settings. Without the link, or if the description has an unexpected form, it stays unchanged; the shim
 * keeps the process to its lease in any case. */
void add_settings(char **words);

#endif
