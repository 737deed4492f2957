/* pgpu-monitor: the native parent of one job, or of the agent of one queue.
 *
 *     pgpu-monitor run FD
 *
 * receives one order over the SOCK_SEQPACKET socket FD and monitors its job; it ends if the socket is closed
 * before. It does not read its environment. The process that starts it need not be the one that sends the
 * order: the job gets the control group, niceness, affinity and namespaces of the former.
 *
 *     pgpu-monitor guard LOCK_FD SPOOL_DIRECTORY -- COMMAND WORDS...
 *
 * runs COMMAND, with LOCK_FD and the number of a socket as two more words, and restarts it when it fails:
 * guard.h. The directory and the command are absolute paths. */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "digits.h"
#include "guard.h"
#include "monitor.h"

/* What the caller left open by mistake would stay open as long as this process runs. */
static void close_all_but(unsigned kept) {
    if (kept > 3) syscall(SYS_close_range, 3, kept - 1, 0);
    syscall(SYS_close_range, kept + 1, ~0u, 0);
}

static _Noreturn void run(int socket) {
    static struct order order;
    if (chdir("/") != 0) _exit(2); /* not the directory of a command, which could not be unmounted */
    if (!receive_order(socket, &order)) _exit(2);
    close(socket);
    monitor(&order);
}

int main(int count, char **arguments) {
    const bool is_run = count == 3 && strcmp(arguments[1], "run") == 0;
    const bool is_guard = count >= 6 && strcmp(arguments[1], "guard") == 0 && strcmp(arguments[4], "--") == 0;
    unsigned long fd = 0;
    if (is_run || is_guard) read_digits(arguments[2], 10, &fd);
    if (fd < 3 || fd > INT_MAX) {
        dprintf(STDERR_FILENO, "usage: pgpu-monitor run FD\n"
                               "       pgpu-monitor guard LOCK_FD SPOOL_DIRECTORY -- COMMAND WORDS...\n");
        return 2;
    }
    close_all_but((unsigned)fd);
    setsid();
    signal(SIGCHLD, SIG_DFL); /* where it is ignored, which is inherited, the kernel discards exit statuses */
    if (is_run) run((int)fd);
    /* The command's words move over two of this program's, so that there is room for two behind them. */
    const char *spool = arguments[3];
    memmove(arguments + 3, arguments + 5, (size_t)(count - 5) * sizeof *arguments);
    arguments[count - 2] = arguments[2];
    guard((int)fd, spool, arguments + 3, &arguments[count - 1]);
}
