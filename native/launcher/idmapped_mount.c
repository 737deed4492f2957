#include "idmapped_mount.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "report.h"

/* Not in the headers of every C library that this is built with; the numbers are the same on all machines. */
#ifndef SYS_open_tree
#define SYS_open_tree 428
#endif
#ifndef SYS_move_mount
#define SYS_move_mount 429
#endif
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif

#define TREE_CLONE       1u
#define TREE_CLOEXEC     ((unsigned)O_CLOEXEC)
#define TREE_RECURSIVE   0x8000u
#define ATTRIBUTE_IDMAP  0x00100000u
#define MOVE_FROM_HANDLE 0x00000004u

#define ROOTS_STAND_IN 4294967294u /* the largest id, which no user has */
#define MOST_MAP       256

/* `struct mount_attr` of linux/mount.h. */
struct attributes {
    uint64_t set, clear, propagation, namespace;
};

/* A process in a user namespace of its own, which lives as long as `hold` is open. */
struct resident {
    pid_t process;
    int hold;
};

static _Noreturn void reside(int ready, int hold) {
    char byte = 0;
    const int error = unshare(CLONE_NEWUSER) == 0 ? 0 : errno;
    if (write(ready, &error, sizeof error) != (ssize_t)sizeof error) _exit(125);
    while (read(hold, &byte, 1) < 0 && errno == EINTR) {
    }
    _exit(0);
}

static struct resident settle(void) {
    int ready[2], hold[2], error = ECHILD;
    if (pipe2(ready, O_CLOEXEC) != 0 || pipe2(hold, O_CLOEXEC) != 0) give_up("stage", "pipe");
    const pid_t process = fork();
    if (process < 0) give_up("stage", "fork");
    if (process == 0) {
        close(hold[1]);
        reside(ready[1], hold[0]);
    }
    close(ready[1]);
    close(hold[0]);
    if (read(ready[0], &error, sizeof error) != (ssize_t)sizeof error || error != 0) {
        errno = error;
        give_up("namespace", "unshare");
    }
    close(ready[0]);
    return (struct resident){.process = process, .hold = hold[1]};
}

static void leave(struct resident resident) {
    close(resident.hold);
    while (waitpid(resident.process, NULL, 0) < 0 && errno == EINTR) {
    }
}

static void write_map(pid_t process, const char *which, const char *map) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s_map", (int)process, which);
    const int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, map, strlen(map)) != (ssize_t)strlen(map)) give_up("namespace", path);
    close(file);
}

/* Lines of `ID ON DISK, ID SEEN, COUNT`. Nothing on disk may be seen as 0: root could then make it. */
static void describe(char *map, size_t size, uid_t user, uid_t owner) {
    const unsigned seen = owner == 0 ? ROOTS_STAND_IN : owner;
    if (owner == user)
        snprintf(map, size, "%u %u 1\n", user, user);
    else
        snprintf(map, size, "%u %u 1\n%u %u 1\n", user, user, owner, seen);
}

/* Groups are all kept, but root's: a file needs both its ids for a capability to count. */
static int open_map(uid_t user, uid_t owner) {
    char map[MOST_MAP], path[64];
    const struct resident resident = settle();
    describe(map, sizeof map, user, owner);
    write_map(resident.process, "uid", map);
    snprintf(map, sizeof map, "0 %u 1\n1 1 %u\n", ROOTS_STAND_IN, ROOTS_STAND_IN - 1);
    write_map(resident.process, "gid", map);
    snprintf(path, sizeof path, "/proc/%d/ns/user", (int)resident.process);
    const int namespace = open(path, O_RDONLY | O_CLOEXEC);
    if (namespace < 0) give_up("namespace", path);
    leave(resident);
    return namespace;
}

/* Private too: later mounts at the source must not appear here without the id mapping. */
int mapped_tree(int source, uid_t user, uid_t owner, const char *name) {
    const unsigned flags = TREE_CLONE | TREE_CLOEXEC | TREE_RECURSIVE | AT_EMPTY_PATH;
    const int tree = (int)syscall(SYS_open_tree, source, "", flags);
    if (tree < 0) give_up(errno == ENOSYS ? "kernel" : "stage", name);
    const int namespace = open_map(user, owner);
    struct attributes attributes = {
        .set = ATTRIBUTE_IDMAP, .propagation = MS_PRIVATE, .namespace = (uint64_t)namespace};
    if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH | TREE_RECURSIVE, &attributes,
                sizeof attributes) != 0)
        give_up(errno == ENOSYS ? "kernel" : "owners", name);
    close(namespace);
    return tree;
}

void attach_tree(int tree, const char *target) {
    if (syscall(SYS_move_mount, tree, "", AT_FDCWD, target, MOVE_FROM_HANDLE) != 0) give_up("stage", target);
}
