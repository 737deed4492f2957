/* Lays a forged limit over its own slice's in a mount namespace of its own, if the system lets it, and
 * becomes another program. Usage: interception-covering SLICE_BYTES FORGED_BYTES COMMAND... */
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#define FORGED "/sys/limit"

static const char *limit_path(void) {
    static char path[4096];
    const char *preload = getenv("LD_PRELOAD");
    if (preload == NULL || access("/.pgpu/limit", F_OK) == 0) return "/.pgpu/limit";
    snprintf(path, sizeof path, "%.*s", (int)strcspn(preload, ": "), preload);
    char *name = strrchr(path, '/');
    snprintf(name, sizeof path - (size_t)(name - path), "/limit");
    return path;
}

static int tell_kernel(const char *path, const char *words) {
    int file = open(path, O_WRONLY);
    int result = file >= 0 && write(file, words, strlen(words)) > 0 ? 0 : -1;
    close(file);
    return result;
}

static int enter_namespaces(void) {
    char users[64], groups[64];
    snprintf(users, sizeof users, "0 %u 1", (unsigned)getuid());
    snprintf(groups, sizeof groups, "0 %u 1", (unsigned)getgid());
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 || tell_kernel("/proc/self/setgroups", "deny") != 0)
        return -1;
    return tell_kernel("/proc/self/uid_map", users) == 0 ? tell_kernel("/proc/self/gid_map", groups) : -1;
}

static size_t read_limit(const char *path, uint64_t *words, size_t most) {
    int file = open(path, O_RDONLY);
    ssize_t size = file < 0 ? 0 : read(file, words, most);
    close(file);
    return size > 0 ? (size_t)size : 0;
}

/* The slice's size in every word that holds it, in a file outside every directory of programs that run. */
static int forge(const char *path, uint64_t from, uint64_t to) {
    static uint64_t words[1 << 16];
    size_t size = read_limit(path, words, sizeof words);
    for (size_t word = 0; word < size / sizeof *words; word++)
        if (words[word] == from) words[word] = to;
    if (mount("tmpfs", "/sys", "tmpfs", 0, NULL) != 0) return -1;
    int file = open(FORGED, O_WRONLY | O_CREAT, 0644);
    int result = size > 0 && file >= 0 && write(file, words, size) == (ssize_t)size ? 0 : -1;
    close(file);
    return result;
}

int main(int count, char **arguments) {
    if (count < 4) return 64;
    const char *path = limit_path();
    uint64_t from = strtoull(arguments[1], NULL, 10), to = strtoull(arguments[2], NULL, 10);
    if (enter_namespaces() != 0 || forge(path, from, to) != 0 ||
        mount(FORGED, path, NULL, MS_BIND, NULL) != 0 ||
        mount(NULL, path, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) != 0)
        perror("covering the limit");
    execvp(arguments[3], &arguments[3]);
    perror(arguments[3]);
    return 127;
}
