/* pgpu-runtime: the program that a container engine runs in the place of runc.
 *
 * Everything without GPU memory goes to runc at once, by exec, with runc's own arguments, streams and exit
 * code: only the creation of a container whose configuration names a request is passed to Python. The
 * configuration is searched as bytes and not parsed. Its own options stand before runc's:
 *
 *     --pgpu-python=PATH  --pgpu-runc=PATH  --pgpu-config=FILE  --pgpu-engine=URL */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arguments.h"
#include "exec_settings.h"

#define SCRIPT "/../app/oci/create.py"

static const char *const REQUESTS[] = {"PGPU_MEMORY", "pgpu.memory"};

static bool mentions_request(const char *text, size_t length) {
    for (size_t i = 0; i < sizeof REQUESTS / sizeof *REQUESTS; i++)
        if (memmem(text, length, REQUESTS[i], strlen(REQUESTS[i])) != NULL) return true;
    return false;
}

/* A configuration that cannot be read is runc's to complain about. */
static bool requests_memory(const char *directory) {
    char path[PATH_MAX];
    struct stat status;
    snprintf(path, sizeof path, "%s/config.json", directory);
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return false;
    bool answer = false;
    if (fstat(descriptor, &status) == 0 && status.st_size > 0) {
        char *text = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (text != MAP_FAILED) {
            answer = mentions_request(text, (size_t)status.st_size);
            munmap(text, (size_t)status.st_size);
        }
    }
    close(descriptor);
    return answer;
}

static _Noreturn void fail(const char *program) {
    fprintf(stderr, "pgpu-runtime: %s: %s\n", program, strerror(errno));
    exit(127);
}

/* -I and -S: neither the caller's environment nor site-packages can change what runs here. */
static _Noreturn void become_python(char **words) {
    static char script[PATH_MAX + sizeof SCRIPT];
    const ssize_t length = readlink("/proc/self/exe", script, PATH_MAX);
    if (length <= 0) fail("/proc/self/exe");
    script[length] = '\0';
    strcpy(strrchr(script, '/'), SCRIPT);
    size_t count = 0;
    while (words[count] != NULL)
        count++;
    const char **line = calloc(count + 5, sizeof *line);
    if (line == NULL) fail("memory");
    const char *python = value_of_ours(words, OURS "python=", "python3");
    line[0] = python;
    line[1] = "-I";
    line[2] = "-S";
    line[3] = script;
    memcpy(line + 4, words, count * sizeof *line);
    execvp(python, (char **)line);
    fail(python);
}

static _Noreturn void become_runc(char **ours, char **words) {
    const char *runc = value_of_ours(ours, OURS "runc=", "runc");
    *--words = (char *)runc; /* over the last word of ours, or our own name */
    execvp(runc, words);
    fail(runc);
}

int main(int count, char **arguments) {
    (void)count;
    char **ours = arguments + 1;
    char **words = skip_ours(ours);
    char **command = find_command(words);
    if (*command != NULL && makes_container(*command) && requests_memory(bundle(command + 1)))
        become_python(ours);
    if (*command != NULL && strcmp(*command, "exec") == 0) add_settings(command + 1);
    become_runc(ours, words);
}
