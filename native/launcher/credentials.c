#include "credentials.h"

#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "digits.h"
#include "report.h"

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

#define MOST_GROUPS 65536          /* NGROUPS_MAX of the kernel */
#define KEPT        ((unsigned)-1) /* an id that setresuid and setresgid leave as it is */

struct identity {
    uid_t user;
    gid_t group;
    size_t group_count;
    gid_t groups[MOST_GROUPS];
};

static _Noreturn void refuse(const char *text) {
    errno = EINVAL;
    give_up("identity", text);
}

/* The number at `*text`, which ends before `end` or the text; -1 as an id means "leave it" and is refused. */
static unsigned read_id(const char **text, char end) {
    unsigned long number;
    const char *rest = read_digits(*text, 10, &number);
    if (rest == NULL || number >= UINT_MAX || (*rest != end && *rest != '\0')) refuse(*text);
    *text = *rest == '\0' ? rest : rest + 1;
    return (unsigned)number;
}

static const struct identity *read_identity(const char *text) {
    static struct identity found; /* too large for the stack */
    found.user = read_id(&text, ':');
    if (*text == '\0') refuse("a group is missing");
    found.group = read_id(&text, ':');
    for (found.group_count = 0; *text != '\0'; found.group_count++) {
        if (found.group_count == MOST_GROUPS) refuse("too many groups");
        found.groups[found.group_count] = read_id(&text, ',');
    }
    return &found;
}

static void close_everything_else(void) {
    if (syscall(SYS_close_range, MARK_FD + 1, UINT_MAX, 0) == 0) return;
    if (errno != ENOSYS) give_up("identity", "close_range"); /* Linux 5.9 */
    struct rlimit most;
    if (getrlimit(RLIMIT_NOFILE, &most) != 0) give_up("identity", "RLIMIT_NOFILE");
    for (rlim_t descriptor = MARK_FD + 1; descriptor < most.rlim_cur; descriptor++)
        close((int)descriptor);
}

/* What root's session left open or unlocked is not the job's. Where the kernel or a sandbox forbids a keyring
 * of its own, keyrings cannot be used either. */
static void leave_our_things(void) {
    close_everything_else();
    syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL);
}

static void forbid_capabilities(void) {
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) give_up("identity", "no_new_privs");
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0) give_up("identity", "ambient set");
    int capability = 0;
    while (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0)
        capability++;
    /* The kernel does not have this one, nor any above. */
    if (capability == 0 || errno != EINVAL) give_up("identity", "bounding set");
}

static void clear_capabilities(void) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {0};
    if (syscall(SYS_capset, &header, none) != 0) give_up("identity", "capset");
}

static void switch_to(const struct identity *wanted) {
    if (setgroups(wanted->group_count, wanted->groups) != 0) give_up("identity", "setgroups");
    if (setresgid(wanted->group, wanted->group, wanted->group) != 0) give_up("identity", "setresgid");
    if (setresuid(wanted->user, wanted->user, wanted->user) != 0) give_up("identity", "setresuid");
}

static void verify(const struct identity *wanted) {
    uid_t user[3];
    gid_t group[3];
    if (getresuid(&user[0], &user[1], &user[2]) != 0 || getresgid(&group[0], &group[1], &group[2]) != 0)
        give_up("identity", "it cannot be read back");
    for (int i = 0; i < 3; i++)
        if (user[i] != wanted->user || group[i] != wanted->group) refuse("it was not taken on");
    if (wanted->user != 0 && setresuid(0, 0, 0) == 0) refuse("it could be left again");
}

void become(const char *text) {
    const struct identity *wanted = read_identity(text);
    leave_our_things();
    if (wanted->user != 0) forbid_capabilities();
    switch_to(wanted);
    if (wanted->user != 0) clear_capabilities();
    verify(wanted);
}

/* The effective ids alone: the kernel empties the effective capabilities with them and fills them again. */
void see_as(const char *text) {
    const struct identity *wanted = read_identity(text);
    if (setgroups(wanted->group_count, wanted->groups) != 0) give_up("identity", "setgroups");
    if (setresgid(KEPT, wanted->group, KEPT) != 0) give_up("identity", "setegid");
    if (setresuid(KEPT, wanted->user, KEPT) != 0 || geteuid() != wanted->user) give_up("identity", "seteuid");
}

void see_as_root(void) {
    if (setresuid(KEPT, 0, KEPT) != 0 || setresgid(KEPT, 0, KEPT) != 0) give_up("identity", "root again");
}

static rlim_t smaller(rlim_t one, rlim_t other) {
    return one < other ? one : other; /* RLIM_INFINITY is the largest number */
}

/* The number before `end`; -1: none. Returns what follows `end`. */
static const char *read_limit(const char *text, const char *at, char end, rlim_t *limit) {
    *limit = RLIM_INFINITY;
    const char *rest = strncmp(at, "-1", 2) == 0 ? at + 2 : read_digits(at, 10, limit);
    if (rest == NULL || *rest != end) refuse(text);
    return rest + 1;
}

void take_limit(const char *text) {
    unsigned long resource;
    struct rlimit wanted, present;
    const char *at = read_limit(text, text, ':', &resource);
    at = read_limit(text, at, ':', &wanted.rlim_cur);
    read_limit(text, at, '\0', &wanted.rlim_max);
    if (setrlimit((int)resource, &wanted) == 0) return;
    if (errno != EPERM || getrlimit((int)resource, &present) != 0) give_up("limit", text);
    wanted = (struct rlimit){smaller(wanted.rlim_cur, present.rlim_max),
                             smaller(wanted.rlim_max, present.rlim_max)};
    if (setrlimit((int)resource, &wanted) != 0) give_up("limit", text);
}

void take_mask(const char *octal) {
    unsigned long mask;
    const char *rest = read_digits(octal, 8, &mask);
    if (rest == NULL || *rest != '\0' || mask > 0777) refuse(octal);
    umask((mode_t)mask);
}
