/* `nvidia-cuda-mps-control` of the simulated driver: `-d` a daemon, `-f` one that stays, else a console of
 * one.
 *
 * It keeps to NVIDIA's documented interface of version 2, and refuses what it does not do: static partitions
 * (-S) and the interface of version 3. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "mps/control/daemon.h"

static void close_everything_else(int kept_fd) {
#ifdef SYS_close_range
    syscall(SYS_close_range, 3u, (unsigned)(kept_fd - 1), 0u);
    if (syscall(SYS_close_range, (unsigned)(kept_fd + 1), ~0u, 0u) == 0) return;
#endif
    for (int fd = 3; fd < 1024; fd++)
        if (fd != kept_fd) close(fd);
}

static void leave_streams(void) {
    int nothing = open("/dev/null", O_RDWR);
    for (int fd = 0; fd <= 2; fd++)
        dup2(nothing, fd);
    if (nothing > 2) close(nothing);
}

/* The parent ends once the daemon listens, or with the daemon's failure. */
static int become_daemon(void) {
    int pair[2];
    char byte = 0;
    if (pipe2(pair, O_CLOEXEC) != 0) return 1;
    pid_t child = fork();
    if (child < 0) return 1;
    if (child > 0) {
        close(pair[1]);
        return read(pair[0], &byte, 1) == 1 ? 0 : 1;
    }
    setsid();
    if (chdir("/") != 0) _exit(1);
    close_everything_else(pair[1]);
    if (!mps_daemon_open()) _exit(1);
    if (write(pair[1], &byte, 1) != 1) _exit(1);
    close(pair[1]);
    leave_streams();
    mps_daemon_serve();
    _exit(0);
}

static int stay(void) {
    if (!mps_daemon_open()) return 1;
    mps_daemon_serve();
    return 0;
}

int main(int count, char **words) {
    signal(SIGPIPE, SIG_IGN);
    if (count == 1) return mps_console();
    if (count == 2 && strcmp(words[1], "-d") == 0) return become_daemon();
    if (count == 2 && strcmp(words[1], "-f") == 0) return stay();
    fprintf(stderr, "Usage: nvidia-cuda-mps-control [-d | -f]\n");
    return 1;
}
