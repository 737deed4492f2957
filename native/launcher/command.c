#include "command.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
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

/* Zeroed memory, for as long as this process lives. */
static void *allocate(size_t length) {
    void *start = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) give_up("environment", "no memory for it");
    return start;
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
    errno = E2BIG;
    if (length > LARGEST_ENVIRONMENT) give_up("environment", "no memory for it");
    char *block = allocate(length + 1);
    read_exactly(block, length);
    const size_t count = count_strings(block, length);
    environ = allocate((count + 2) * sizeof *environ); /* the end, and room for `preload` */
    for (size_t i = 0; i < count; i++, block += strlen(block) + 1)
        environ[i] = block;
}

void preload(const char *libraries) {
    static const char name[] = "LD_PRELOAD=";
    char **place = environ;
    while (*place != NULL && strncmp(*place, name, sizeof name - 1) != 0)
        place++;
    const char *present = *place != NULL ? *place + sizeof name - 1 : "";
    *place = allocate(sizeof name + strlen(libraries) + 1 + strlen(present));
    char *end = stpcpy(stpcpy(*place, name), libraries);
    if (*present != '\0') stpcpy(stpcpy(end, ":"), present);
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
        const size_t length = colon != NULL ? (size_t)(colon - from) : strlen(from);
        char file[PATH_MAX];
        if (length + 1 + strlen(command[0]) < sizeof file) {
            memcpy(file, from, length);
            file[length] = '/';
            stpcpy(file + length + (length > 0), command[0]); /* an empty entry is the current directory */
            execve(file, command, environ);
        } else {
            *file = '\0';
            errno = ENOENT;
        }
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
