/* A directory directly under / cannot be made by an ordinary user, and a name below a writable directory
 * could be renamed by the job. So the job gets a new root: a small tmpfs with /.pgpu and, bound into it,
 * every entry of the old root, as bubblewrap builds its sandboxes.
 *
 * While it is built, the new root is `/` and the old one is the current directory, mounted over it: a source
 * is a relative path, a target an absolute one. */
#include "view.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "digits.h"
#include "mount_targets.h"
#include "report.h"

#define ROOT_FLAGS   (MS_NOSUID | MS_NODEV)
#define ROOT_OPTIONS "mode=0755,size=4m"
#define ROOT_BYTES   32768 /* of directory entries that are read at a time */

static void write_text(const char *path, const char *text) {
    const int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, text, strlen(text)) != (ssize_t)strlen(text)) give_up("namespace", path);
    close(file);
}

static void map_to_self(const char *path, unsigned id) {
    static const char one[] = " 1\n";
    char line[2 * MOST_DIGITS + 1 + sizeof one], *end = line + sizeof line - sizeof one;
    memcpy(end, one, sizeof one);
    char *begin = write_digits(end, id);
    *--begin = ' ';
    write_text(path, write_digits(begin, id));
}

void enter_private_namespace(void) {
    const uid_t user = geteuid();
    const gid_t group = getegid();
    if (unshare(CLONE_NEWNS | (user == 0 ? 0 : CLONE_NEWUSER)) != 0) give_up("namespace", "unshare");
    if (user != 0) {
        /* The kernel's condition for a group map without privilege. */
        write_text("/proc/self/setgroups", "deny");
        map_to_self("/proc/self/uid_map", user);
        map_to_self("/proc/self/gid_map", group);
    }
    if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) != 0) give_up("namespace", "make / a slave");
}

void join_path(char *buffer, const char *directory, const char *name) {
    if (strlen(directory) + strlen(name) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        give_up("view", name);
    }
    stpcpy(stpcpy(buffer, directory), name);
}

const char *on_host(const char *path) {
    while (*path == '/')
        path++;
    return *path != '\0' ? path : ".";
}

static void make_directory(const char *path) {
    if (mkdir(path, 0755) != 0 && errno != EEXIST) give_up("view", path);
}

void touch(const char *path) {
    if (mknod(path, S_IFREG | 0644, 0) != 0 && errno != EEXIST) give_up("view", path);
}

/* Flags of a mount that a user namespace may not drop when it remounts. */
static unsigned long present_flags(const char *path) {
    struct statfs info;
    if (statfs(path, &info) != 0) give_up("view", path);
    const unsigned long flags = (unsigned long)info.f_flags;
    /* All but the last have the same number in both. */
    return (flags & (MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME)) |
           ((flags & ST_RELATIME) != 0 ? MS_RELATIME : 0);
}

static void restrict_mount(const char *target, unsigned long flags) {
    if (mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | flags, NULL) != 0) give_up("view", target);
}

static void bind_from_host(const char *path, const char *target, unsigned long extra_flags) {
    if (mount(on_host(path), target, NULL, MS_BIND, NULL) != 0) give_up("view", target);
    const unsigned long flags = present_flags(target);
    if ((flags & extra_flags) != extra_flags) restrict_mount(target, flags | extra_flags);
}

/* Somewhere below the host's root there has to be a mount point for the new one; it is in use until the
 * pivot, which leaves the old root mounted over the new one and uncovers that directory. */
static int enter_new_root(void) {
    static const char place[] = "/tmp";
    const int old_root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (old_root < 0) give_up("view", "/");
    if (mount("pgpu", place, "tmpfs", ROOT_FLAGS, ROOT_OPTIONS) != 0) give_up("view", place);
    if (syscall(SYS_pivot_root, place, place) != 0) give_up("view", "pivot_root");
    if (fchdir(old_root) != 0) give_up("view", "the old root");
    return old_root;
}

static void copy_link(const char *source, const char *target) {
    char text[PATH_MAX];
    const ssize_t length = readlink(source, text, sizeof text - 1);
    if (length < 0) give_up("view", source);
    text[length] = '\0';
    if (symlink(text, target) != 0) give_up("view", target);
}

/* The type of an entry, for a file system that does not keep it in the directory. */
static unsigned char find_type(const char *source) {
    struct stat info;
    if (syscall(SYS_newfstatat, AT_FDCWD, source, &info, AT_SYMLINK_NOFOLLOW) != 0) give_up("view", source);
    return S_ISLNK(info.st_mode) ? DT_LNK : S_ISDIR(info.st_mode) ? DT_DIR : DT_REG;
}

static void mirror_entry(const char *source, unsigned char type) {
    char target[PATH_MAX];
    join_path(target, "/", source);
    if (type == DT_UNKNOWN) type = find_type(source);
    if (type == DT_LNK) {
        copy_link(source, target);
        return;
    }
    if (type == DT_DIR)
        make_directory(target);
    else
        touch(target);
    /* Recursive, since a user namespace may not uncover what lies under the host's mounts. */
    if (mount(source, target, NULL, MS_BIND | MS_REC, NULL) != 0) give_up("view", target);
}

static bool is_mirrored(const char *name) {
    return strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && strcmp(name, ".pgpu") != 0;
}

static void mirror(int old_root) {
    static char entries[ROOT_BYTES] __attribute__((aligned(sizeof(long))));
    long length;
    while ((length = syscall(SYS_getdents64, old_root, entries, sizeof entries)) > 0)
        for (char *at = entries; at < entries + length;) {
            const struct dirent64 *entry = (const void *)at;
            if (is_mirrored(entry->d_name)) mirror_entry(entry->d_name, entry->d_type);
            at += entry->d_reclen;
        }
    if (length < 0) give_up("view", "/");
    close(old_root);
}

static void mount_slice(const struct options *options) {
    static const unsigned long data = MS_NOSUID | MS_NODEV | MS_NOEXEC;
    char target[PATH_MAX];
    bind_from_host(options->slice, "/.pgpu", MS_RDONLY | MS_NOSUID | MS_NODEV);
    bind_from_host(options->usage, "/.pgpu/usage", data);
    if (options->time != NULL) bind_from_host(options->time, "/.pgpu/time", data);
    if (options->board != NULL) bind_from_host(options->board, "/.pgpu/board", MS_RDONLY | data);
    if (options->simulated != NULL) bind_from_host(options->simulated, "/.pgpu/simgpu", data);
    if (options->mps != NULL) bind_from_host(options->mps, "/.pgpu/mps", data);
    for (int i = 0; i < options->driver_count; i++) {
        join_path(target, "/.pgpu/driver/", options->drivers[i].name);
        bind_from_host(options->drivers[i].path, target, MS_RDONLY | MS_NOSUID | MS_NODEV);
    }
}

/* The files of a slice, all empty, so that a probe needs no slice. */
static void make_probe_slice(const struct options *options) {
    char path[PATH_MAX];
    touch("/.pgpu/ld.so.preload");
    for (int i = 0; i < options->shadow_count; i++) {
        join_path(path, "/.pgpu/", options->shadows[i].name);
        touch(path);
    }
}

/* Read-only already: a bind keeps the flags of the mount it comes from. */
static void shadow(const char *name, const char *target) {
    char source[PATH_MAX];
    join_path(source, "/.pgpu/", name);
    if (mount(source, target, NULL, MS_BIND, NULL) != 0) give_up("view", target);
}

/* A file made directly under / would vanish with the job: better refused. */
static void leave_old_root(const char *directory) {
    restrict_mount("/", ROOT_FLAGS | MS_RDONLY);
    if (umount2(".", MNT_DETACH) != 0) give_up("view", "unmount the old root");
    if (chdir(directory) != 0) give_up("directory", directory);
}

bool enter_view(const struct options *options) {
    char directory[PATH_MAX];
    /* Not a path: the directory lies outside of the root. */
    if (syscall(SYS_getcwd, directory, sizeof directory) < 0 || *directory != '/')
        give_up("directory", "the current directory");
    read_mount_points();
    const int old_root = enter_new_root();
    make_directory("/.pgpu");
    mirror(old_root);
    if (!make_appear(options->shadows, options->shadow_count))
        give_up("view", "a library of the driver cannot be made to appear");
    const struct pair preload = {.name = "ld.so.preload", .path = options->preload_path};
    const bool is_preloading = preload.path != NULL && make_appear(&preload, 1);
    if (options->is_probe)
        make_probe_slice(options);
    else
        mount_slice(options);
    for (int i = 0; i < options->shadow_count; i++)
        shadow(options->shadows[i].name, options->shadows[i].path);
    if (is_preloading) shadow(preload.name, preload.path);
    leave_old_root(directory);
    return is_preloading;
}
