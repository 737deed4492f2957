/* The part of the C library that pgpu-launch needs, for a build that is linked with none.
 *
 * The start of a C library costs more than most of what the launcher does: the loader maps and relocates it,
 * and both it and a static glibc read the processor's features with `cpuid`, which on a virtual machine is an
 * exit to the host each time. The functions have their standard names and meanings, so that the same sources
 * are linked with the real library where they are built with sanitizers, or are part of another program. For
 * one thread: errno is a plain variable. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

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

void *mmap(void *start, size_t length, int protection, int flags, int descriptor, off_t place) {
    return (void *)CALL6(mmap, start, length, protection, flags, descriptor, place); /* -1 is MAP_FAILED */
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

int execve(const char *path, char *const *arguments, char *const *environment) {
    return (int)CALL3(execve, path, arguments, environment);
}

/* Volatile, or the compiler makes a call of the function itself out of the loop. */
void *memset(void *start, int byte, size_t length) {
    for (volatile char *at = start; length > 0; length--)
        *at++ = (char)byte;
    return start;
}

void *memcpy(void *restrict to, const void *restrict from, size_t length) {
    const char *source = from;
    for (volatile char *at = to; length > 0; length--)
        *at++ = *source++;
    return to;
}

void *memmove(void *to, const void *from, size_t length) {
    const char *source = from;
    volatile char *at = to;
    if (at <= source || at >= source + length) return memcpy(to, from, length);
    while (length-- > 0)
        at[length] = source[length];
    return to;
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
