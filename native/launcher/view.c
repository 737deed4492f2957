/* A directory directly under / cannot be made by an ordinary user, and a name below a writable directory
 * could be renamed by the job. So the job gets a new root: a small tmpfs with /.pgpu and, bound into it,
 * every entry of the old root, as bubblewrap builds its sandboxes. */
#include "view.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "mount_targets.h"
#include "report.h"

#define ROOT_OPTIONS "mode=0755,size=4m"

static void write_text(const char *path, const char *text) {
    const int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, text, strlen(text)) != (ssize_t)strlen(text)) give_up("namespace", path);
    close(file);
}

static void map_to_self(const char *path, unsigned id) {
    char line[64];
    snprintf(line, sizeof line, "%u %u 1\n", id, id);
    write_text(path, line);
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

void join_path(char *buffer, const char *root, const char *path) {
    const int length = snprintf(buffer, PATH_MAX, "%s%s", root, path);
    if (length < 0 || length >= PATH_MAX) {
        errno = ENAMETOOLONG;
        give_up("view", path);
    }
}

static void make_directory(const char *path) {
    if (mkdir(path, 0755) != 0 && errno != EEXIST) give_up("view", path);
}

void touch(const char *path) {
    const int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) give_up("view", path);
    close(file);
}

static void mount_tmpfs(const char *path) {
    if (mount("pgpu", path, "tmpfs", MS_NOSUID | MS_NODEV, ROOT_OPTIONS) != 0) give_up("view", path);
}

static void pivot(const char *new_root, const char *put_old) {
    if (syscall(SYS_pivot_root, new_root, put_old) != 0) give_up("view", "pivot_root");
}

/* Flags of a mount that a user namespace may not drop when it remounts. */
static unsigned long present_flags(const char *path) {
    struct statvfs info;
    if (statvfs(path, &info) != 0) give_up("view", path);
    unsigned long flags =
        info.f_flag & (MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME);
    if (info.f_flag & ST_RELATIME) flags |= MS_RELATIME;
    return flags;
}

static void restrict_mount(const char *target, unsigned long extra_flags) {
    if (mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | present_flags(target) | extra_flags, NULL) != 0)
        give_up("view", target);
}

void bind_over(const char *source, const char *target, unsigned long extra_flags) {
    if (mount(source, target, NULL, MS_BIND, NULL) != 0) give_up("view", target);
    if (extra_flags != 0) restrict_mount(target, extra_flags);
}

static void enter_scratch(void) {
    mount_tmpfs("/tmp");
    make_directory("/tmp" OLD_ROOT);
    make_directory("/tmp" NEW_ROOT);
    make_directory("/tmp" SCRATCH);
    pivot("/tmp", "/tmp" OLD_ROOT);
    if (chdir("/") != 0) give_up("view", "/");
    mount_tmpfs(NEW_ROOT);
}

static void copy_link(const char *source, const char *target) {
    char text[PATH_MAX];
    const ssize_t length = readlink(source, text, sizeof text - 1);
    if (length < 0) give_up("view", source);
    text[length] = '\0';
    if (symlink(text, target) != 0) give_up("view", target);
}

static void mirror_entry(const char *name) {
    char source[PATH_MAX], target[PATH_MAX];
    join_path(source, OLD_ROOT "/", name);
    join_path(target, NEW_ROOT "/", name);
    struct stat info;
    if (lstat(source, &info) != 0) give_up("view", source);
    if (S_ISLNK(info.st_mode)) {
        copy_link(source, target);
        return;
    }
    if (S_ISDIR(info.st_mode))
        make_directory(target);
    else
        touch(target);
    /* Recursive, since a user namespace may not uncover what lies under the host's mounts. */
    if (mount(source, target, NULL, MS_BIND | MS_REC, NULL) != 0) give_up("view", target);
}

static bool is_mirrored(const char *name) {
    return strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && strcmp(name, ".pgpu") != 0;
}

static void mirror_old_root(void) {
    DIR *root = opendir(OLD_ROOT);
    if (root == NULL) give_up("view", OLD_ROOT);
    for (struct dirent *entry = readdir(root); entry != NULL; entry = readdir(root))
        if (is_mirrored(entry->d_name)) mirror_entry(entry->d_name);
    closedir(root);
}

static const char *in_old_root(const char *path, char *buffer) {
    join_path(buffer, OLD_ROOT, path);
    return buffer;
}

static void mount_slice(const struct options *options) {
    char source[PATH_MAX], target[PATH_MAX];
    make_directory(NEW_ROOT "/.pgpu");
    bind_over(in_old_root(options->slice, source), NEW_ROOT "/.pgpu", MS_RDONLY | MS_NOSUID | MS_NODEV);
    bind_over(in_old_root(options->usage, source), NEW_ROOT "/.pgpu/usage", MS_NOSUID | MS_NODEV | MS_NOEXEC);
    if (options->time != NULL)
        bind_over(in_old_root(options->time, source), NEW_ROOT "/.pgpu/time",
                  MS_NOSUID | MS_NODEV | MS_NOEXEC);
    if (options->board != NULL)
        bind_over(in_old_root(options->board, source), NEW_ROOT "/.pgpu/board",
                  MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC);
    if (options->simulated != NULL)
        bind_over(in_old_root(options->simulated, source), NEW_ROOT "/.pgpu/simgpu",
                  MS_NOSUID | MS_NODEV | MS_NOEXEC);
    if (options->mps != NULL)
        bind_over(in_old_root(options->mps, source), NEW_ROOT "/.pgpu/mps", MS_NOSUID | MS_NODEV | MS_NOEXEC);
    for (int i = 0; i < options->driver_count; i++) {
        join_path(target, NEW_ROOT "/.pgpu/driver/", options->drivers[i].name);
        bind_over(in_old_root(options->drivers[i].path, source), target, MS_RDONLY | MS_NOSUID | MS_NODEV);
    }
}

/* The files of a slice, all empty, so that a probe needs no slice. */
static void mount_probe_slice(const struct options *options) {
    char path[PATH_MAX];
    make_directory(NEW_ROOT "/.pgpu");
    touch(NEW_ROOT "/.pgpu/ld.so.preload");
    for (int i = 0; i < options->shadow_count; i++) {
        join_path(path, NEW_ROOT "/.pgpu/", options->shadows[i].name);
        touch(path);
    }
}

static void shadow_libraries(const struct options *options) {
    char source[PATH_MAX], target[PATH_MAX];
    for (int i = 0; i < options->shadow_count; i++) {
        join_path(source, NEW_ROOT "/.pgpu/", options->shadows[i].name);
        join_path(target, NEW_ROOT, options->shadows[i].path);
        bind_over(source, target,
                  0); /* read-only already: a bind keeps the flags of the mount it comes from */
    }
}

static bool put_preload_file(const char *path) {
    char target[PATH_MAX];
    const struct pair wanted = {.name = "ld.so.preload", .path = path};
    if (!make_appear(&wanted, 1)) return false;
    join_path(target, NEW_ROOT, path);
    bind_over(NEW_ROOT "/.pgpu/ld.so.preload", target, 0);
    return true;
}

static void enter_new_root(const char *directory) {
    restrict_mount(NEW_ROOT,
                   MS_RDONLY); /* a file made directly under / would vanish with the job: better refused */
    if (chdir(NEW_ROOT) != 0) give_up("view", NEW_ROOT);
    pivot(".", ".");
    if (umount2(".", MNT_DETACH) != 0) give_up("view", "unmount the old root");
    if (chdir(directory) != 0) give_up("directory", directory);
}

bool enter_view(const struct options *options) {
    char *directory = getcwd(NULL, 0);
    if (directory == NULL) give_up("directory", "the current directory");
    enter_scratch();
    mirror_old_root();
    if (options->is_probe)
        mount_probe_slice(options);
    else
        mount_slice(options);
    if (!make_appear(options->shadows, options->shadow_count))
        give_up("view", "a library of the driver cannot be made to appear");
    shadow_libraries(options);
    const bool is_preloading = options->preload_path != NULL && put_preload_file(options->preload_path);
    enter_new_root(directory);
    free(directory);
    return is_preloading;
}
