/* pgpu-bring SOURCE PIDFD TARGET: mounts a directory of this machine into a container that exists already.
 *
 * The grant of a container is determined only after its mounts were made; this adds one mount over an empty
 * directory that was left for it. It enters the mount namespace of the container's first process through a
 * pidfd, since the PID may have been reused. In the container only TARGET is resolved, without following
 * links, and nothing is executed or loaded. Run by root, on Linux 5.8 or newer; exit code 0, or 1 and one
 * line on standard error. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_open_tree
#define SYS_open_tree 428
#endif
#ifndef SYS_move_mount
#define SYS_move_mount 429
#endif
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#define CLONE_OF_TREE   1    /* OPEN_TREE_CLONE */
#define FROM_EMPTY_PATH 0x04 /* MOVE_MOUNT_F_EMPTY_PATH */
#define TO_EMPTY_PATH   0x40 /* MOVE_MOUNT_T_EMPTY_PATH */
#define DECIMAL         10

static _Noreturn void give_up(const char *step, const char *name) {
    fprintf(stderr, "%s %s: %s\n", step, name, strerror(errno));
    exit(1);
}

/* -1: it is no number of a descriptor. */
static int descriptor_of(const char *word) {
    char *end;
    const long number = strtol(word, &end, DECIMAL);
    return end == word || *end != '\0' || number < 0 || number > INT_MAX ? -1 : (int)number;
}

/* The kernel takes a descriptor of a namespace for this, too; a process that has ended it refuses. */
static void enter(const char *word) {
    const int pidfd = descriptor_of(word);
    if (setns(pidfd, CLONE_NEWNS) != 0)
        give_up("cannot enter the container of the process behind descriptor", word);
    close(pidfd);
}

static int open_target(const char *path) {
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
    return (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
}

int main(int count, char **words) {
    if (count != 4) {
        fputs("pgpu-bring SOURCE PIDFD TARGET\n", stderr);
        return 1;
    }
    const int tree = (int)syscall(SYS_open_tree, AT_FDCWD, words[1], CLONE_OF_TREE | O_CLOEXEC);
    if (tree < 0) give_up("cannot take", words[1]);
    enter(words[2]);
    const int target = open_target(words[3]);
    if (target < 0) give_up("there is no place for a mount at", words[3]);
    if (syscall(SYS_move_mount, tree, "", target, "", FROM_EMPTY_PATH | TO_EMPTY_PATH) != 0)
        give_up("cannot mount at", words[3]);
    return 0;
}
