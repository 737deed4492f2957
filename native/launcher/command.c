#include "command.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "report.h"

#define RECORD_MARK         14          /* native/monitor/record.h */
#define LARGEST_ENVIRONMENT (64u << 20) /* far above the kernel's own limit for execve */

extern char **environ;

static void read_exactly(void *buffer, size_t length) {
    for (size_t done = 0; done < length;) {
        const ssize_t got = read(CONTROL_FD, (char *)buffer + done, length - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) give_up("environment", "it ends early");
        done += (size_t)got;
    }
}

static size_t count_strings(const char *block, size_t length) {
    size_t count = 0;
    for (size_t i = 0; i < length; i++)
        count += block[i] == '\0';
    return count;
}

void read_environment(void) {
    uint64_t length;
    read_exactly(&length, sizeof length);
    char *block = length <= LARGEST_ENVIRONMENT ? calloc(length + 1, 1) : NULL;
    if (block == NULL) give_up("environment", "no memory for it");
    read_exactly(block, length);
    const size_t count = count_strings(block, length);
    char **strings = calloc(count + 1, sizeof *strings);
    if (strings == NULL) give_up("environment", "no memory for it");
    for (size_t i = 0; i < count; i++, block += strlen(block) + 1)
        strings[i] = block;
    environ = strings;
}

void preload(const char *libraries) {
    const char *present = getenv("LD_PRELOAD");
    char *joined = NULL;
    const int length = present != NULL && *present != '\0' ? asprintf(&joined, "%s:%s", libraries, present)
                                                           : asprintf(&joined, "%s", libraries);
    if (length < 0 || setenv("LD_PRELOAD", joined, 1) != 0) give_up("environment", "LD_PRELOAD");
    free(joined);
}

void take_terminal(void) {
    if (ioctl(STDIN_FILENO, TIOCSCTTY, 0) != 0) give_up("terminal", "it cannot be the controlling one");
}

void wait_until_let_go(void) {
    char byte;
    if (write(REPORT_FD, "ready\n", 6) != 6) _exit(125);
    ssize_t got;
    do {
        got = read(CONTROL_FD, &byte, 1);
    } while (got < 0 && errno == EINTR);
    if (got != 1) _exit(125);
}

void mark_run(void) {
    if (pwrite(MARK_FD, "R", 1, RECORD_MARK) != 1) give_up("record", "mark");
}

static void run_on_path(char **command) {
    const char *path = getenv("PATH");
    int worst = ENOENT;
    for (const char *from = path != NULL ? path : "/usr/local/bin:/usr/bin:/bin"; from != NULL;) {
        const char *colon = strchr(from, ':');
        const int length = colon != NULL ? (int)(colon - from) : (int)strlen(from);
        char file[PATH_MAX];
        if (snprintf(file, sizeof file, "%.*s%s%s", length, from, length > 0 ? "/" : "", command[0]) <
            PATH_MAX)
            execve(file, command, environ);
        if (errno != ENOENT && errno != ENOTDIR && errno != EACCES) return;
        if (errno == EACCES && access(file, F_OK) == 0) /* the file itself, not a closed directory of PATH */
            worst = EACCES;
        from = colon != NULL ? colon + 1 : NULL;
    }
    errno = worst;
}

_Noreturn void run_command(char **command) {
    if (strchr(command[0], '/') != NULL)
        execve(command[0], command, environ);
    else
        run_on_path(command);
    give_up("command", command[0]);
}
