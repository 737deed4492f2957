#include "options.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "report.h"

static void add_pair(struct pair *pairs, int *count, char *text) {
    char *equals = strchr(text, '=');
    if (equals == NULL || *count == MAX_PAIRS) {
        errno = EINVAL;
        give_up("options", text);
    }
    *equals = '\0';
    pairs[(*count)++] = (struct pair){.name = text, .path = equals + 1};
}

static void add_limit(struct options *options, const char *text) {
    if (options->limit_count == MAX_LIMITS) {
        errno = EINVAL;
        give_up("options", text);
    }
    options->limits[options->limit_count++] = text;
}

static bool read_switch(struct options *options, const char *word) {
    if (strcmp(word, "--tty") == 0)
        options->has_terminal = true;
    else if (strcmp(word, "--mark") == 0)
        options->is_marked = true;
    else if (strcmp(word, "--probe") == 0)
        options->is_probe = true;
    else
        return false;
    return true;
}

static bool read_value(struct options *options, const char *word, char *value) {
    if (value == NULL) return false;
    if (strcmp(word, "--slice") == 0)
        options->slice = value;
    else if (strcmp(word, "--usage") == 0)
        options->usage = value;
    else if (strcmp(word, "--time") == 0)
        options->time = value;
    else if (strcmp(word, "--board") == 0)
        options->board = value;
    else if (strcmp(word, "--simulated") == 0)
        options->simulated = value;
    else if (strcmp(word, "--mps") == 0)
        options->mps = value;
    else if (strcmp(word, "--preload-path") == 0)
        options->preload_path = value;
    else if (strcmp(word, "--as") == 0)
        options->identity = value;
    else if (strcmp(word, "--umask") == 0)
        options->mask = value;
    else if (strcmp(word, "--limit") == 0)
        add_limit(options, value);
    else if (strcmp(word, "--directory") == 0)
        options->directory = value;
    else if (strcmp(word, "--driver") == 0)
        add_pair(options->drivers, &options->driver_count, value);
    else if (strcmp(word, "--shadow") == 0)
        add_pair(options->shadows, &options->shadow_count, value);
    else
        return false;
    return true;
}

void read_options(struct options *options, char **argv) {
    char **word = argv + 1;
    for (; *word != NULL && strcmp(*word, "--") != 0; word++) {
        if (read_switch(options, *word)) continue;
        if (!read_value(options, word[0], word[1])) {
            errno = EINVAL;
            give_up("options", *word);
        }
        word++;
    }
    if (*word != NULL) options->command = word + 1;
    const bool has_command = options->command != NULL && options->command[0] != NULL;
    if (has_command == options->is_probe || (options->slice != NULL && options->usage == NULL)) {
        errno = EINVAL;
        give_up("options", "incomplete");
    }
}
