/* Finding and becoming the container's own command. */
#ifndef PGPU_OCI_CONTAINER_COMMAND_H
#define PGPU_OCI_CONTAINER_COMMAND_H

/* 0 if `become_command` will find the command, else the exit code that Docker returns: 127 not there, 126 not
 * executable. */
int missing_command(char **command, char **environment);

/* Become the command; ends with 127 or 126 and one line where that fails. */
_Noreturn void become_command(char **command, char **environment);

/* Add the settings of a file of NUL-ended NAME=VALUE to an environment, in the place of those of the same
 * name. Ends with 125 where it cannot be read or is too large. */
char **with_settings(char **environment, const char *path);

/* One line of ours on standard error. */
void print(const char *text);

#endif
