/* The part of the C library that pgpu-launch and pgpu-monitor need, for builds that are linked with none.
 *
 * The start of a C library costs more than most of what these programs do: the loader maps and relocates it,
 * and both it and a static glibc read the processor's features with `cpuid`, which on a virtual machine is an
 * exit to the host each time. The functions have their standard names and meanings, so that the same sources
 * are linked with the real library where they are built with sanitizers, or are part of another program. For
 * one thread: errno is a plain variable. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "digits.h"
#include "system.h"

#define LARGEST_ERROR 4095 /* the kernel returns an error as a number from -4095 to -1 */

ENTRY;
_Noreturn void begin(long *stack);
int main(int count, char **arguments);

char **environ;
static int error_number;

int *__errno_location(void) {
    return &error_number;
}

_Noreturn void begin(long *stack) {
    char **arguments = (char **)(stack + 1);
    environ = arguments + *stack + 1;
    leave(main((int)*stack, arguments));
}

long syscall(long number, ...) {
    long words[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++)
        words[i] = va_arg(rest, long);
    va_end(rest);
    const long result = call6(number, words[0], words[1], words[2], words[3], words[4], words[5]);
    if (result >= 0 || result < -LARGEST_ERROR) return result;
    error_number = (int)-result;
    return -1;
}

/* Every argument as a whole register: the upper half of a smaller one is undefined in a variadic call. */
#define CALL6(name, a, b, c, d, e, f)                                                                        \
    syscall(SYS_##name, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define CALL3(name, a, b, c) CALL6(name, a, b, c, 0, 0, 0)

void _exit(int code) {
    leave(code);
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const unsigned mode = (flags & O_CREAT) != 0 ? va_arg(rest, unsigned) : 0;
    va_end(rest);
    return (int)CALL6(openat, AT_FDCWD, path, flags, mode, 0, 0);
}

int openat(int directory, const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const unsigned mode = (flags & O_CREAT) != 0 ? va_arg(rest, unsigned) : 0;
    va_end(rest);
    return (int)CALL6(openat, directory, path, flags, mode, 0, 0);
}

int fcntl(int descriptor, int command, ...) {
    va_list rest;
    va_start(rest, command);
    const long word = va_arg(rest, long);
    va_end(rest);
    return (int)CALL3(fcntl, descriptor, command, word);
}

int ioctl(int descriptor, unsigned long request, ...) {
    va_list rest;
    va_start(rest, request);
    const long word = va_arg(rest, long);
    va_end(rest);
    return (int)CALL3(ioctl, descriptor, request, word);
}

int prctl(int option, ...) {
    long words[4];
    va_list rest;
    va_start(rest, option);
    for (int i = 0; i < 4; i++)
        words[i] = va_arg(rest, long);
    va_end(rest);
    return (int)CALL6(prctl, option, words[0], words[1], words[2], words[3], 0);
}

int close(int descriptor) {
    return (int)CALL3(close, descriptor, 0, 0);
}

ssize_t read(int descriptor, void *buffer, size_t length) {
    return CALL3(read, descriptor, buffer, length);
}

ssize_t write(int descriptor, const void *buffer, size_t length) {
    return CALL3(write, descriptor, buffer, length);
}

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    return CALL3(writev, descriptor, parts, count);
}

ssize_t pwrite(int descriptor, const void *buffer, size_t length, off_t place) {
    return CALL6(pwrite64, descriptor, buffer, length, place, 0, 0);
}

ssize_t pread(int descriptor, void *buffer, size_t length, off_t place) {
    return CALL6(pread64, descriptor, buffer, length, place, 0, 0);
}

ssize_t splice(int from, off_t *from_place, int to, off_t *to_place, size_t length, unsigned flags) {
    return CALL6(splice, from, from_place, to, to_place, length, flags);
}

int ftruncate(int descriptor, off_t length) {
    return (int)CALL3(ftruncate, descriptor, length, 0);
}

int fdatasync(int descriptor) {
    return (int)CALL3(fdatasync, descriptor, 0, 0);
}

/* Some file systems cannot allocate; what is written there has room as well. For a new file. */
int posix_fallocate(int descriptor, off_t place, off_t length) {
    if (CALL6(fallocate, descriptor, 0, place, length, 0, 0) == 0) return 0;
    if (error_number != EOPNOTSUPP) return error_number;
    for (; length > 0; place++, length--)
        if (pwrite(descriptor, "", 1, place) != 1) return error_number;
    return 0;
}

int fstat(int descriptor, struct stat *status) {
    return (int)CALL3(fstat, descriptor, status, 0);
}

int linkat(int from, const char *path, int to, const char *name, int flags) {
    return (int)CALL6(linkat, from, path, to, name, flags, 0);
}

int unlinkat(int directory, const char *path, int flags) {
    return (int)CALL3(unlinkat, directory, path, flags);
}

int unlink(const char *path) {
    return unlinkat(AT_FDCWD, path, 0);
}

int renameat(int from, const char *path, int to, const char *name) {
    return (int)CALL6(renameat, from, path, to, name, 0, 0);
}

int rename(const char *path, const char *name) {
    return renameat(AT_FDCWD, path, AT_FDCWD, name);
}

int dup2(int descriptor, int wanted) {
    return (int)CALL3(dup3, descriptor, wanted, 0); /* the same one twice is an error, unlike in dup2 */
}

int poll(struct pollfd *polls, nfds_t count, int rest_ms) {
    struct timespec rest = {rest_ms / 1000, rest_ms % 1000 * 1000000L};
    return (int)CALL6(ppoll, polls, count, rest_ms < 0 ? NULL : &rest, NULL, 0, 0);
}

int socketpair(int domain, int kind, int protocol, int ends[2]) {
    return (int)CALL6(socketpair, domain, kind, protocol, ends, 0, 0);
}

int accept4(int listener, struct sockaddr *restrict address, socklen_t *restrict length, int flags) {
    return (int)CALL6(accept4, listener, address, length, flags, 0, 0);
}

int shutdown(int socket, int how) {
    return (int)CALL3(shutdown, socket, how, 0);
}

ssize_t send(int socket, const void *data, size_t length, int flags) {
    return CALL6(sendto, socket, data, length, flags, 0, 0);
}

ssize_t recv(int socket, void *data, size_t length, int flags) {
    return CALL6(recvfrom, socket, data, length, flags, 0, 0);
}

ssize_t sendmsg(int socket, const struct msghdr *message, int flags) {
    return CALL3(sendmsg, socket, message, flags);
}

ssize_t recvmsg(int socket, struct msghdr *message, int flags) {
    return CALL3(recvmsg, socket, message, flags);
}

void *mmap(void *start, size_t length, int protection, int flags, int descriptor, off_t place) {
    return (void *)CALL6(mmap, start, length, protection, flags, descriptor, place); /* -1 is MAP_FAILED */
}

int munmap(void *start, size_t length) {
    return (int)CALL3(munmap, start, length, 0);
}

void *mremap(void *start, size_t length, size_t wanted, int flags, ...) {
    return (void *)CALL6(mremap, start, length, wanted, flags, 0, 0);
}

int access(const char *path, int mode) {
    return (int)CALL3(faccessat, AT_FDCWD, path, mode);
}

int mkdir(const char *path, mode_t mode) {
    return (int)CALL3(mkdirat, AT_FDCWD, path, mode);
}

int mknod(const char *path, mode_t mode, dev_t device) {
    return (int)CALL6(mknodat, AT_FDCWD, path, mode, device, 0, 0);
}

int symlink(const char *text, const char *path) {
    return (int)CALL3(symlinkat, text, AT_FDCWD, path);
}

ssize_t readlink(const char *path, char *buffer, size_t length) {
    return CALL6(readlinkat, AT_FDCWD, path, buffer, length, 0, 0);
}

int chdir(const char *path) {
    return (int)CALL3(chdir, path, 0, 0);
}

int fchdir(int descriptor) {
    return (int)CALL3(fchdir, descriptor, 0, 0);
}

int statfs(const char *path, struct statfs *info) {
    return (int)CALL3(statfs, path, info, 0);
}

int mount(const char *source, const char *target, const char *kind, unsigned long flags, const void *data) {
    return (int)CALL6(mount, source, target, kind, flags, data, 0);
}

int umount2(const char *path, int flags) {
    return (int)CALL3(umount2, path, flags, 0);
}

int unshare(int flags) {
    return (int)CALL3(unshare, flags, 0, 0);
}

pid_t fork(void) {
    return (pid_t)CALL6(clone, SIGCHLD, 0, 0, 0, 0, 0);
}

pid_t getpid(void) {
    return (pid_t)CALL3(getpid, 0, 0, 0);
}

int kill(pid_t pid, int number) {
    return (int)CALL3(kill, pid, number, 0);
}

int waitid(idtype_t kind, id_t id, siginfo_t *end, int options) {
    return (int)CALL6(waitid, kind, id, end, options, NULL, 0);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    return (int)CALL3(clock_gettime, clock, now, 0);
}

/* The kernel's set has 64 signals, the C library's 1024: their first bits are the same. */
#define SIGNALS_SIZE 8

int sigemptyset(sigset_t *set) {
    memset(set, 0, sizeof *set);
    return 0;
}

int sigfillset(sigset_t *set) {
    memset(set, 0xff, sizeof *set);
    return 0;
}

int sigaddset(sigset_t *set, int number) {
    *(uint64_t *)set |= (uint64_t)1 << (number - 1);
    return 0;
}

int sigprocmask(int how, const sigset_t *restrict set, sigset_t *restrict before) {
    return (int)CALL6(rt_sigprocmask, how, set, before, SIGNALS_SIZE, 0, 0);
}

int signalfd(int descriptor, const sigset_t *set, int flags) {
    return (int)CALL6(signalfd4, descriptor, set, SIGNALS_SIZE, flags, 0, 0);
}

/* For SIG_DFL and SIG_IGN: a function would need a way back to what it interrupted. */
__sighandler_t signal(int number, __sighandler_t action) {
    const struct {
        __sighandler_t action;
        unsigned long flags;
        void *restorer;
        uint64_t mask;
    } wanted = {action, 0, NULL, 0};
    return CALL6(rt_sigaction, number, &wanted, NULL, SIGNALS_SIZE, 0, 0) == 0 ? SIG_DFL : SIG_ERR;
}

pid_t setsid(void) {
    return (pid_t)CALL3(setsid, 0, 0, 0);
}

mode_t umask(mode_t mask) {
    return (mode_t)CALL3(umask, mask, 0, 0);
}

uid_t geteuid(void) {
    return (uid_t)CALL3(geteuid, 0, 0, 0);
}

gid_t getegid(void) {
    return (gid_t)CALL3(getegid, 0, 0, 0);
}

int getresuid(uid_t *real, uid_t *effective, uid_t *saved) {
    return (int)CALL3(getresuid, real, effective, saved);
}

int getresgid(gid_t *real, gid_t *effective, gid_t *saved) {
    return (int)CALL3(getresgid, real, effective, saved);
}

int setresuid(uid_t real, uid_t effective, uid_t saved) {
    return (int)CALL3(setresuid, real, effective, saved);
}

int setresgid(gid_t real, gid_t effective, gid_t saved) {
    return (int)CALL3(setresgid, real, effective, saved);
}

int setgroups(size_t count, const gid_t *groups) {
    return (int)CALL3(setgroups, count, groups, 0);
}

int getrlimit(__rlimit_resource_t resource, struct rlimit *limit) {
    return (int)CALL3(getrlimit, resource, limit, 0);
}

int setrlimit(__rlimit_resource_t resource, const struct rlimit *limit) {
    return (int)CALL3(setrlimit, resource, limit, 0);
}

int execv(const char *path, char *const *arguments) {
    return execve(path, arguments, environ);
}

int execve(const char *path, char *const *arguments, char *const *environment) {
    return (int)CALL3(execve, path, arguments, environment);
}

/* Volatile, or the compiler makes a call of the function itself out of the loop. */
void *memset(void *start, int byte, size_t length) {
    for (volatile char *at = start; length > 0; length--)
        *at++ = (char)byte;
    return start;
}

typedef uint64_t __attribute__((may_alias, aligned(1))) anywhere;

void *memcpy(void *restrict to, const void *restrict from, size_t length) {
    const char *source = from;
    volatile char *at = to;
    for (; length >= sizeof(anywhere); length -= sizeof(anywhere)) {
        *(volatile anywhere *)at = *(const anywhere *)source;
        at += sizeof(anywhere);
        source += sizeof(anywhere);
    }
    while (length-- > 0)
        *at++ = *source++;
    return to;
}

/* A copy from the front is right for a place in front of the source: a word is read before it is written. */
void *memmove(void *to, const void *from, size_t length) {
    const char *source = from;
    volatile char *at = to;
    if (at <= source || at >= source + length) return memcpy(to, from, length);
    while (length-- > 0)
        at[length] = source[length];
    return to;
}

char *strcpy(char *restrict to, const char *restrict from) {
    return memcpy(to, from, strlen(from) + 1);
}

char *stpcpy(char *restrict to, const char *restrict from) {
    const size_t length = strlen(from);
    memcpy(to, from, length + 1);
    return to + length;
}

int memcmp(const void *one, const void *other, size_t length) {
    const unsigned char *left = one, *right = other;
    for (size_t i = 0; i < length; i++)
        if (left[i] != right[i]) return left[i] - right[i];
    return 0;
}

size_t strlen(const char *text) {
    const volatile char *at = text;
    while (*at != '\0')
        at++;
    return (size_t)(at - text);
}

int strncmp(const char *one, const char *other, size_t length) {
    for (; length > 0; one++, other++, length--)
        if (*one != *other || *one == '\0') return (unsigned char)*one - (unsigned char)*other;
    return 0;
}

int strcmp(const char *one, const char *other) {
    return strncmp(one, other, (size_t)-1);
}

/* In parentheses: macros of a newer C library. */
char *(strchr)(const char *text, int wanted) {
    while (*text != (char)wanted)
        if (*text++ == '\0') return NULL;
    return (char *)text;
}

char *(strrchr)(const char *text, int wanted) {
    const char *found = NULL;
    for (; (text = strchr(text, wanted)) != NULL && *text != '\0'; text++)
        found = text;
    return (char *)(wanted == '\0' ? text : found);
}

char *getenv(const char *name) {
    const size_t length = strlen(name);
    for (char **setting = environ; *setting != NULL; setting++)
        if (strncmp(*setting, name, length) == 0 && (*setting)[length] == '=') return *setting + length + 1;
    return NULL;
}

size_t strspn(const char *text, const char *accepted) {
    size_t length = 0;
    while (text[length] != '\0' && strchr(accepted, text[length]) != NULL)
        length++;
    return length;
}

size_t strcspn(const char *text, const char *refused) {
    size_t length = 0;
    while (text[length] != '\0' && strchr(refused, text[length]) == NULL)
        length++;
    return length;
}

struct output {
    char *at, *end; /* of a buffer, which may be too small for `length` */
    int length;
};

static void put(struct output *output, const char *text, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (output->at < output->end) *output->at++ = text[i];
    output->length += (int)length;
}

static void put_number(struct output *output, unsigned long number, bool is_negative) {
    char digits[24], *end = digits + sizeof digits, *at = end;
    do
        *--at = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    if (is_negative) *--at = '-';
    put(output, at, (size_t)(end - at));
}

/* Knows %s, %d, %ld and %lu alone. */
static int format(char *buffer, size_t size, const char *text, va_list values) {
    struct output output = {buffer, buffer + size - 1, 0};
    for (; *text != '\0'; text++) {
        if (*text != '%') {
            put(&output, text, 1);
        } else if (*++text == 's') {
            const char *value = va_arg(values, const char *);
            put(&output, value, strlen(value));
        } else if (*text == 'l' && *++text == 'u') {
            put_number(&output, va_arg(values, unsigned long), false);
        } else {
            const long value = text[-1] == 'l' ? va_arg(values, long) : va_arg(values, int);
            put_number(&output, value < 0 ? 0 - (unsigned long)value : (unsigned long)value, value < 0);
        }
    }
    *output.at = '\0';
    return output.length;
}

int snprintf(char *restrict buffer, size_t size, const char *restrict text, ...) {
    va_list values;
    va_start(values, text);
    const int length = format(buffer, size, text, values);
    va_end(values);
    return length;
}

int dprintf(int descriptor, const char *restrict text, ...) {
    char line[1024];
    va_list values;
    va_start(values, text);
    const int length = format(line, sizeof line, text, values);
    va_end(values);
    write_all(descriptor, line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
    return length;
}
