#include "arguments.h"

#include <stddef.h>
#include <string.h>

static const char *const VALUED[] = {"root", "log", "log-format", "criu", "rootless"};

static const char *flag_name(const char *word) {
    return word[1] == '-' ? word + 2 : word + 1;
}

static bool takes_next(const char *word) {
    for (size_t i = 0; i < sizeof VALUED / sizeof *VALUED; i++)
        if (strcmp(flag_name(word), VALUED[i]) == 0) return true;
    return false;
}

char **skip_ours(char **words) {
    while (*words != NULL && strncmp(*words, OURS, strlen(OURS)) == 0)
        words++;
    return words;
}

const char *value_of_ours(char **words, const char *name, const char *otherwise) {
    const size_t length = strlen(name);
    for (; *words != NULL && strncmp(*words, OURS, strlen(OURS)) == 0; words++)
        if (strncmp(*words, name, length) == 0) return *words + length;
    return otherwise;
}

char **find_command(char **words) {
    for (; *words != NULL; words++) {
        if (**words != '-') return words;
        if (takes_next(*words) && words[1] != NULL) words++;
    }
    return words;
}

bool makes_container(const char *command) {
    return strcmp(command, "create") == 0 || strcmp(command, "run") == 0 || strcmp(command, "restore") == 0;
}

const char *bundle(char **words) {
    const char *found = ".";
    for (; *words != NULL; words++) {
        const char *name = **words == '-' ? flag_name(*words) : "";
        if ((strcmp(name, "bundle") == 0 || strcmp(name, "b") == 0) && words[1] != NULL) found = *++words;
        if (strncmp(name, "bundle=", 7) == 0) found = name + 7;
        if (strncmp(name, "b=", 2) == 0) found = name + 2;
    }
    return found;
}
