/* pgpu-stage: mounts paths that a user named, and may open, where a container engine can bind them and the
 * user cannot change them.
 *
 *     pgpu-stage open UID:GID:GROUP,… DIRECTORY PATH… [-- SECRET… [-- N/PLACE…]]
 *         open each path as that user and mount it at DIRECTORY/0, DIRECTORY/1, …; each PLACE must exist
 *         in the Nth
 *     pgpu-stage clear DIRECTORY
 *         undo all of it
 *
 * An engine that gets the user's own path resolves it later, as root, and mounts whatever is there by then.
 * Here the path is resolved with the user's permissions and the mount is of the file that was opened, so
 * nothing can be swapped in between. Magic links of /proc are not followed: they bypass the permissions of a
 * path. Only directories and regular files are accepted: no socket, device or pipe. Root's rights do not
 * apply in the mount (idmapped_mount.h), since an engine resolves paths and makes mount points as root. Run
 * by root; exit code 0, or 125 and one line on descriptor 4. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "credentials.h"
#include "idmapped_mount.h"
#include "report.h"

#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#ifndef SYS_faccessat2
#define SYS_faccessat2 439
#endif
#ifndef AT_EACCESS
#define AT_EACCESS 0x200
#endif

#define MOST_VOLUMES    64
#define STAGING_OPTIONS "mode=0700,size=64k,nr_inodes=128"

struct opened {
    int descriptor;
    bool is_directory;
    uid_t owner; /* the user, or the owner of what the user may write */
    const char *path;
};

static int open_at(int directory, const char *path, uint64_t flags, uint64_t resolve) {
    struct open_how how = {.flags = flags | O_CLOEXEC, .resolve = RESOLVE_NO_MAGICLINKS | resolve};
    return (int)syscall(SYS_openat2, directory, path, &how, sizeof how);
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

/* `secrets`: absolute paths without links, of sockets that give any client root's rights. */
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

/* A directory that its owner opened for others to write must be writable in the mount too. */
static uid_t trusted_owner(int descriptor, uid_t owner) {
    const bool is_writable = syscall(SYS_faccessat2, descriptor, "", W_OK, AT_EACCESS | AT_EMPTY_PATH) == 0;
    return is_writable ? owner : geteuid();
}

static struct opened open_one(const char *path, char **secrets) {
    struct stat info;
    const int descriptor = open_at(AT_FDCWD, path, O_PATH, 0);
    if (descriptor < 0 || fstat(descriptor, &info) != 0) give_up("volume", path);
    if (!S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode)) {
        errno = ENOTSUP;
        give_up("kind", path);
    }
    refuse_unreadable(descriptor, path);
    refuse_secrets(descriptor, path, secrets);
    return (struct opened){.descriptor = descriptor,
                           .is_directory = S_ISDIR(info.st_mode),
                           .owner = trusted_owner(descriptor, info.st_uid),
                           .path = path};
}

/* The engine resolves a link in between, inside the container. In a mount of files of another owner root's
 * rights apply to that owner's files (idmapped_mount.h), so no engine may resolve a path there. */
static void refuse_bad_place(const struct opened *opened, int count, const char *text) {
    char *rest;
    const long number = strtol(text, &rest, 10);
    errno = EINVAL;
    if (rest == text || *rest != '/' || number < 0 || number >= count) give_up("options", text);
    errno = EPERM;
    if (opened[number].owner != geteuid()) give_up("foreign", text);
    const int found =
        open_at(opened[number].descriptor, rest + 1, O_PATH, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
    if (found < 0 && errno != ELOOP) give_up("place", text);
    if (found >= 0) close(found);
}

static void make_mount_point(const char *path, bool is_directory) {
    if (is_directory && mkdir(path, 0700) != 0) give_up("stage", path);
    if (is_directory) return;
    const int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) give_up("stage", path);
    close(file);
}

static void mount_at(const char *directory, int number, int tree, bool is_directory) {
    char target[PATH_MAX];
    if (snprintf(target, sizeof target, "%s/%d", directory, number) >= PATH_MAX) give_up("stage", directory);
    make_mount_point(target, is_directory);
    attach_tree(tree, target);
}

/* The words behind `--`, which becomes the end of those before it; NULL without one. */
static char **split(char **words) {
    for (; words != NULL && *words != NULL; words++)
        if (strcmp(*words, "--") == 0) {
            *words = NULL;
            return words + 1;
        }
    return NULL;
}

static int open_all(struct opened *opened, char **paths, char **secrets) {
    int count = 0;
    for (; paths[count] != NULL; count++) {
        errno = E2BIG;
        if (count == MOST_VOLUMES) give_up("volume", paths[count]);
        opened[count] = open_one(paths[count], secrets);
    }
    return count;
}

static void open_and_mount(const char *identity, const char *directory, char **paths) {
    struct opened opened[MOST_VOLUMES];
    char **secrets = split(paths), **places = split(secrets);
    see_as(identity);
    const uid_t user = geteuid();
    const int count = open_all(opened, paths, secrets);
    for (; places != NULL && *places != NULL; places++)
        refuse_bad_place(opened, count, *places);
    see_as_root();
    if (mount("pgpu", directory, "tmpfs", MS_NOSUID | MS_NODEV, STAGING_OPTIONS) != 0)
        give_up("stage", directory);
    for (int i = 0; i < count; i++)
        mount_at(directory, i, mapped_tree(opened[i].descriptor, user, opened[i].owner, opened[i].path),
                 opened[i].is_directory);
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
        open_and_mount(arguments[2], arguments[3], arguments + 4);
    else if (count == 3 && strcmp(arguments[1], "clear") == 0)
        clear(arguments[2]);
    else {
        errno = EINVAL;
        give_up(
            "options",
            "pgpu-stage open UID:GID:GROUPS DIRECTORY PATH… [-- SECRET… [-- N/PLACE…]] | clear DIRECTORY");
    }
    return 0;
}
