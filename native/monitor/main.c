/* pgpu-monitor: the native parent of one job, or of the agent of one queue.
 *
 *     pgpu-monitor run FD
 *
 * receives one order over the SOCK_SEQPACKET socket FD and monitors its job. It does not read its
 * environment.
 *
 *     pgpu-monitor guard LOCK_FD SPOOL_DIRECTORY -- COMMAND WORDS...
 *
 * runs COMMAND, with LOCK_FD as one more word, and restarts it when it fails: guard.h. The directory and the
 * command are absolute paths. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guard.h"
#include "monitor.h"

/* What the caller left open by mistake would stay open as long as this process runs. */
static void close_all_but(unsigned kept) {
    if (kept > 3) syscall(SYS_close_range, 3, kept - 1, 0);
    syscall(SYS_close_range, kept + 1, ~0u, 0);
}

static _Noreturn void run(int socket) {
    static struct order order;
    if (!receive_order(socket, &order)) _exit(2);
    close(socket);
    monitor(&order);
}

int main(int count, char **arguments) {
    const bool is_run = count == 3 && strcmp(arguments[1], "run") == 0;
    const bool is_guard = count >= 6 && strcmp(arguments[1], "guard") == 0 && strcmp(arguments[4], "--") == 0;
    const int fd = is_run || is_guard ? atoi(arguments[2]) : -1;
    if (fd < 3) {
        fprintf(stderr, "usage: pgpu-monitor run FD\n"
                        "       pgpu-monitor guard LOCK_FD SPOOL_DIRECTORY -- COMMAND WORDS...\n");
        return 2;
    }
    close_all_but((unsigned)fd);
    setsid();
    signal(SIGCHLD, SIG_DFL); /* where it is ignored, which is inherited, the kernel discards exit statuses */
    if (is_run) run(fd);
    /* The command's words move over the "--", so that there is room for the lock behind them. */
    memmove(arguments + 4, arguments + 5, (size_t)(count - 5) * sizeof *arguments);
    arguments[count - 1] = arguments[2];
    guard(fd, arguments[3], arguments + 4);
}
