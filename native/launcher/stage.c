/* pgpu-stage: puts what a user named, and may open, where a container engine can mount it and the user cannot
 * reach.
 *
 *   pgpu-stage open UID:GID:GROUP,… DIRECTORY PATH… [-- SECRET…]   open each path as that user and bind what
 * was opened to DIRECTORY/0, DIRECTORY/1, … pgpu-stage clear DIRECTORY   take all of it away again
 *
 * An engine that is given the user's own path looks it up as root, later: whatever lies there by then would
 * be mounted. Here the lookup is the user's and the mount is of the file that it found, so that nothing can
 * be swapped in between. Magic links of /proc are not followed: they lead past the permissions of a path.
 * Only directories and plain files are taken: no socket, device or pipe. Run by root; exit code 0, or 125 and
 * one line on descriptor 4. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "identity.h"
#include "report.h"

#ifndef SYS_openat2
#define SYS_openat2 437
#endif

#define MOST_VOLUMES    64
#define STAGING_OPTIONS "mode=0700,size=64k,nr_inodes=128"

struct opened {
    int descriptor;
    bool is_directory;
};

static int open_without_magic(const char *path, uint64_t flags) {
    struct open_how how = {.flags = flags | O_CLOEXEC, .resolve = RESOLVE_NO_MAGICLINKS};
    return (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
}

static void refuse_unreadable(int descriptor, const char *path) {
    char again[64];
    snprintf(again, sizeof again, "/proc/self/fd/%d", descriptor);
    const int readable = open(again, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (readable < 0) give_up("volume", path);
    close(readable);
}

static bool is_at_or_below(const char *path, const char *directory) {
    const size_t length = strcmp(directory, "/") == 0 ? 0 : strlen(directory);
    return strncmp(path, directory, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

/* `secrets`: absolute paths without links, of sockets through which everybody is root. */
static void refuse_secrets(int descriptor, const char *path, char **secrets) {
    char link[64], real[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    const ssize_t length = readlink(link, real, sizeof real - 1);
    if (length < 0) give_up("volume", path);
    real[length] = '\0';
    for (char **secret = secrets; secret != NULL && *secret != NULL; secret++)
        if (is_at_or_below(*secret, real)) {
            errno = EPERM;
            give_up("secret", path);
        }
}

static struct opened open_one(const char *path, char **secrets) {
    struct stat info;
    const int descriptor = open_without_magic(path, O_PATH);
    if (descriptor < 0 || fstat(descriptor, &info) != 0) give_up("volume", path);
    if (!S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode)) {
        errno = ENOTSUP;
        give_up("kind", path);
    }
    refuse_unreadable(descriptor, path);
    refuse_secrets(descriptor, path, secrets);
    return (struct opened){.descriptor = descriptor, .is_directory = S_ISDIR(info.st_mode)};
}

static void make_mount_point(const char *path, bool is_directory) {
    if (is_directory && mkdir(path, 0700) != 0) give_up("stage", path);
    if (is_directory) return;
    const int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) give_up("stage", path);
    close(file);
}

static void bind_to(const char *directory, int number, struct opened source) {
    char target[PATH_MAX], opened[64];
    if (snprintf(target, sizeof target, "%s/%d", directory, number) >= PATH_MAX) give_up("stage", directory);
    snprintf(opened, sizeof opened, "/proc/self/fd/%d", source.descriptor);
    make_mount_point(target, source.is_directory);
    if (mount(opened, target, NULL, MS_BIND | MS_REC, NULL) != 0) give_up("stage", target);
}

/* The words behind `--`, which becomes the end of those before it; NULL without one. */
static char **split(char **words) {
    for (; *words != NULL; words++)
        if (strcmp(*words, "--") == 0) {
            *words = NULL;
            return words + 1;
        }
    return NULL;
}

static void open_and_bind(const char *identity, const char *directory, char **paths) {
    struct opened opened[MOST_VOLUMES];
    char **secrets = split(paths);
    int count = 0;
    see_as(identity);
    for (; paths[count] != NULL; count++) {
        errno = E2BIG;
        if (count == MOST_VOLUMES) give_up("volume", paths[count]);
        opened[count] = open_one(paths[count], secrets);
    }
    see_as_root();
    if (mount("pgpu", directory, "tmpfs", MS_NOSUID | MS_NODEV, STAGING_OPTIONS) != 0)
        give_up("stage", directory);
    for (int i = 0; i < count; i++)
        bind_to(directory, i, opened[i]);
}

/* Whatever lies below goes with it, but the files themselves. */
static void clear(const char *directory) {
    while (umount2(directory, MNT_DETACH | UMOUNT_NOFOLLOW) == 0) {
    }
    if (errno != EINVAL && errno != ENOENT) give_up("stage", directory);
}

int main(int count, char **arguments) {
    if (chdir("/") != 0) give_up("stage", "/");
    if (count >= 5 && strcmp(arguments[1], "open") == 0)
        open_and_bind(arguments[2], arguments[3], arguments + 4);
    else if (count == 3 && strcmp(arguments[1], "clear") == 0)
        clear(arguments[2]);
    else {
        errno = EINVAL;
        give_up("options", "pgpu-stage open UID:GID:GROUPS DIRECTORY PATH… | clear DIRECTORY");
    }
    return 0;
}
