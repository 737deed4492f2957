#include "namespace.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "report.h"

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
        write_text("/proc/self/setgroups",
                   "deny"); /* the kernel's condition for a group map without privilege */
        map_to_self("/proc/self/uid_map", user);
        map_to_self("/proc/self/gid_map", group);
    }
    if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) != 0) give_up("namespace", "make / a slave");
}
