#include "visible_pid.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BYTES       4096
#define START_TIME_FIELD 22
#define HINTS            1024u

static bool read_file(unsigned pid, const char *name, char text[FILE_BYTES]) {
    char path[64];
    snprintf(path, sizeof(path), "/proc/%u/%s", pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t length = read(fd, text, FILE_BYTES - 1);
    close(fd);
    if (length <= 0) return false;
    text[length] = '\0';
    return true;
}

/* The PID in the process's own namespace: the last of `NSpid:`. */
static unsigned innermost_pid(unsigned pid) {
    char text[FILE_BYTES];
    const char *line = read_file(pid, "status", text) ? strstr(text, "\nNSpid:") : NULL;
    if (line == NULL) return 0;
    unsigned innermost = 0;
    char *next;
    for (const char *at = line + strlen("\nNSpid:"); *at != '\n' && *at != '\0'; at = next) {
        unsigned long value = strtoul(at, &next, 10);
        if (next == at) break;
        innermost = (unsigned)value;
    }
    return innermost;
}

static uint64_t start_time_ticks(unsigned pid) {
    char text[FILE_BYTES];
    /* The second field, the name, may hold spaces and brackets; it ends with the last bracket. */
    const char *at = read_file(pid, "stat", text) ? strrchr(text, ')') : NULL;
    for (unsigned field = 2; at != NULL && field < START_TIME_FIELD; field++)
        at = strchr(at + 1, ' ');
    return at != NULL ? strtoull(at, NULL, 10) : 0;
}

static uint64_t own_pid_namespace(void) {
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

/* The first processes of two containers are both PID 1 and may start in the same tick, so the namespace
 * decides wherever it may be read. */
static bool may_be_in(unsigned pid, uint64_t pid_namespace) {
    char path[64];
    struct stat status;
    snprintf(path, sizeof(path), "/proc/%u/ns/pid", pid);
    return pid_namespace == 0 || stat(path, &status) != 0 || status.st_ino == pid_namespace;
}

static bool is_process_of(const struct pgpu_reader_slot *slot, unsigned pid) {
    return innermost_pid(pid) == slot->pid && start_time_ticks(pid) == slot->start_time_ticks &&
           may_be_in(pid, slot->pid_namespace);
}

static unsigned find_in_proc(const struct pgpu_reader_slot *slot) {
    unsigned found = 0;
    DIR *directory = opendir("/proc");
    if (directory == NULL) return 0;
    for (struct dirent *entry; found == 0 && (entry = readdir(directory)) != NULL;) {
        if (!isdigit((unsigned char)entry->d_name[0])) continue;
        unsigned pid = (unsigned)strtoul(entry->d_name, NULL, 10);
        if (is_process_of(slot, pid)) found = pid;
    }
    closedir(directory);
    return found;
}

/* Where a process was found last. With sixty containers a scan of /proc for each takes longer than the second
 * after which it is repeated. Every hint is verified, so any thread may write it. */
static unsigned hints[HINTS];

static unsigned *hint_of(const struct pgpu_reader_slot *slot) {
    uint64_t mixed = (slot->pid_namespace + slot->start_time_ticks * 31 + slot->pid) * 0x9e3779b97f4a7c15ull;
    return &hints[(mixed >> 32) % HINTS];
}

unsigned pgpu_visible_pid(const struct pgpu_reader_slot *slot) {
    if (slot->pid_namespace != 0 && slot->pid_namespace == own_pid_namespace()) return slot->pid;
    unsigned *hint = hint_of(slot), known = __atomic_load_n(hint, __ATOMIC_RELAXED);
    if (known != 0 && is_process_of(slot, known)) return known;
    unsigned found = find_in_proc(slot);
    if (found != 0) __atomic_store_n(hint, found, __ATOMIC_RELAXED);
    return found;
}
