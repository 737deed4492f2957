/* Command lines, as words that each end with a zero byte. */
#include <setjmp.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "arguments.h"
#include "exec_settings.h"
#include "options.h"
#include "readers.h"
#include "report.h"

#define MOST_WORDS 512

static jmp_buf given_up;

/* The launcher's own ends the process. */
_Noreturn void give_up(const char *stage, const char *detail) {
    CHECK(stage != NULL && detail != NULL);
    longjmp(given_up, 1);
}

static void split(char *text, size_t size, char *words[MOST_WORDS + 1]) {
    size_t count = 0;
    for (size_t at = 0; at < size && count < MOST_WORDS; at += strlen(text + at) + 1)
        words[count++] = text + at;
    words[count] = NULL;
}

void read_launcher_options(const uint8_t *data, size_t size) {
    static char *words[MOST_WORDS + 2] = {"pgpu-launcher"};
    static struct options options;
    char *text = copy(data, size);
    split(text, size, words + 1);
    options = (struct options){0};
    if (setjmp(given_up) == 0) {
        read_options(&options, words);
        CHECK(options.is_probe || (options.command != NULL && options.command[0] != NULL));
    }
    CHECK(options.driver_count <= MAX_PAIRS && options.shadow_count <= MAX_PAIRS);
    CHECK(options.limit_count <= MAX_LIMITS);
    free(text);
}

void read_oci_arguments(const uint8_t *data, size_t size) {
    static char *words[MOST_WORDS + 1];
    char *text = copy(data, size);
    split(text, size, words);
    CHECK(value_of_ours(words, OURS "runc=", "runc") != NULL);
    char **command = find_command(skip_ours(words));
    if (*command != NULL) {
        makes_container(*command);
        CHECK(bundle(command + 1) != NULL);
    }
    free(text);
}

/* The settings of the lease and a process description of an engine, divided at a place that the first byte
 * is. */
void read_exec_settings(const uint8_t *data, size_t size) {
    static char *words[] = {"--process", "process.json", NULL};
    if (size < 2) return;
    const size_t settings = *data++ % size--;
    write_file("pgpu-environment", data, settings);
    write_file("process.json", data + settings, size - settings);
    CHECK(chdir(own_folder()) == 0);
    add_settings(words);
}
