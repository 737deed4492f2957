/* pgpu-monitor: the native parent of one job.
 *
 *     pgpu-monitor run FD
 *
 * receives one order over the SOCK_SEQPACKET socket FD and monitors its job. It does not read its
 * environment. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "monitor.h"

int main(int count, char **arguments) {
    if (count != 3 || strcmp(arguments[1], "run") != 0) {
        fprintf(stderr, "usage: pgpu-monitor run FD\n");
        return 2;
    }
    static struct order order;
    const int socket = atoi(arguments[2]);
    if (socket < 3) return 2;
    /* What the caller left open by mistake would outlive it here. */
    syscall(SYS_close_range, 3, (unsigned)socket - 1, 0);
    syscall(SYS_close_range, (unsigned)socket + 1, ~0u, 0);
    if (!receive_order(socket, &order)) return 2;
    close(socket);
    setsid();
    monitor(&order);
}
