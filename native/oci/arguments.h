/* The words of a container engine's call: ours stand before those of runc. */
#ifndef PGPU_OCI_ARGUMENTS_H
#define PGPU_OCI_ARGUMENTS_H

#include <stdbool.h>

#define OURS "--pgpu-"

/* The first word that is none of ours. */
char **skip_ours(char **words);

/* The value of the option `name`, which ends with `=`, among ours. */
const char *value_of_ours(char **words, const char *name, const char *otherwise);

/* The first word that is no flag of runc's and no flag's value; the end of the list if there is none. */
char **find_command(char **words);

bool makes_container(const char *command);

/* The folder of a container's configuration, by the words behind the command. */
const char *bundle(char **words);

#endif
