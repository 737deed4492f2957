/* monitor-restricted CALL: makes one system call under the monitor's seccomp filter, and exits with 0 if it
 * came back. The process that the filter takes for the job's is this one's parent.
 *
 * monitor-restricted refuse PROGRAM WORDS...: executes a program that gets EPERM for a filter of its own. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <termios.h>
#include <unistd.h>

#include "seccomp.h"

static int make_call(const char *name) {
    char *nothing[] = {NULL};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strcmp(name, "execve") == 0) return (int)syscall(SYS_execve, "/bin/true", nothing, nothing);
    if (strcmp(name, "clone") == 0) return (int)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (strcmp(name, "socket") == 0) return (int)syscall(SYS_socket, AF_UNIX, SOCK_DGRAM, 0);
    if (strcmp(name, "address") == 0)
        return (int)syscall(SYS_sendto, 0, "x", 1, MSG_DONTWAIT, &address, sizeof address);
    if (strcmp(name, "ptrace") == 0) return (int)syscall(SYS_ptrace, PTRACE_ATTACH, getppid(), 0, 0);
    if (strcmp(name, "setuid") == 0) return (int)syscall(SYS_setuid, 0);
    if (strcmp(name, "mount") == 0) return (int)syscall(SYS_mount, "a", "b", "c", 0, NULL);
    if (strcmp(name, "unlinkat") == 0) return (int)syscall(SYS_unlinkat, 0, "/no/such/file", 0);
    if (strcmp(name, "ioctl") == 0) return (int)syscall(SYS_ioctl, 0, TIOCSTI, "x");
    if (strcmp(name, "wide-ioctl") == 0) return (int)syscall(SYS_ioctl, 0, (1ul << 32) + FIONREAD, NULL);
    if (strcmp(name, "kill-other") == 0) return (int)syscall(SYS_kill, 1, 0);
    if (strcmp(name, "kill-all") == 0) return (int)syscall(SYS_kill, -1, 0);
    if (strcmp(name, "code") == 0)
        return (int)syscall(SYS_mmap, NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (strcmp(name, "file") == 0)
        return (int)syscall(SYS_mmap, NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, 0, 0);
#ifdef __x86_64__
    if (strcmp(name, "x32") == 0) return (int)syscall(0x40000000 | SYS_getpid);
    if (strcmp(name, "i386") == 0) { /* the number of read(2) here is exit's or another's there */
        long result = 20;            /* getpid */
        __asm__ volatile("int $0x80" : "+a"(result) : : "memory");
        return (int)result;
    }
#endif
    if (strcmp(name, "kill-own") == 0) return (int)syscall(SYS_kill, getpid(), 0);
    if (strcmp(name, "memory") == 0)
        return (int)syscall(SYS_mmap, NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    _Exit(3);
}

static void refuse_filters(void) {
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PR_SET_SECCOMP, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = sizeof program / sizeof *program, .filter = program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) != 0)
        _Exit(4);
}

int main(int count, char **arguments) {
    if (count > 2 && strcmp(arguments[1], "refuse") == 0) {
        refuse_filters();
        execv(arguments[2], arguments + 2);
        _Exit(5);
    }
    if (count != 2 || !restrict_calls(getppid())) _Exit(2);
    make_call(arguments[1]);
    syscall(SYS_exit_group, 0);
}
