/* `nvidia-cuda-mps-control` without an option: lines of the standard input go to the daemon, answers to the
 * output. */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mps/control/daemon.h"

#define LINE_BYTES 1024

static bool carry_out(const char *line) {
    static char reply[MPS_REPLY_BYTES];
    int fd = mps_connect(mps_place(), "control_privileged");
    if (fd < 0) return false;
    bool is_sent = send(fd, line, strlen(line), MSG_NOSIGNAL) > 0;
    ssize_t length = is_sent ? recv(fd, reply, sizeof(reply) - 1, 0) : -1;
    close(fd);
    if (length <= 0) return false;
    reply[length] = '\0';
    fputs(reply, stdout);
    fflush(stdout);
    return true;
}

int mps_console(void) {
    char line[LINE_BYTES];
    bool is_asked = isatty(STDIN_FILENO) != 0;
    for (;;) {
        if (is_asked) fputs("> ", stdout), fflush(stdout);
        if (fgets(line, sizeof(line), stdin) == NULL) return 0;
        line[strcspn(line, "\n")] = '\0';
        if (line[strspn(line, " \t")] == '\0') continue;
        if (strcmp(line, "exit") == 0) return 0;
        if (!carry_out(line)) {
            fprintf(stderr, "Cannot find MPS control daemon process\n");
            return 1;
        }
        if (strncmp(line, "quit", 4) == 0) return 0;
    }
}
