/* A bind mount needs a file to lie on. A directory that lacks it is covered by a read-only overlay of itself
 * and of a layer with empty files of the missing names; what is mounted below it is bound into the overlay
 * again. */
#include "mount_targets.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "report.h"
#include "view.h"

#define FIRST_TABLE (1ul << 16)

static struct {
    char *first; /* each ended by a zero byte, in the order of their mounts */
    char *end;
} points;

static const char *find(const char *at, const char *end, char wanted) {
    while (at < end && *at != wanted)
        at++;
    return at;
}

static const char *find_behind(const char *at, const char *end, char wanted) {
    at = find(at, end, wanted);
    return at < end ? at + 1 : end;
}

/* The mount point is the fifth field of a line of mountinfo, with the kernel's octal escapes. The strings are
 * written over the part of the table that was read. */
static char *keep_points(char *table, const char *end) {
    char *to = table;
    for (const char *at = table; at < end; at = find_behind(at, end, '\n')) {
        for (int field = 1; field < 5; field++)
            at = find_behind(at, end, ' ');
        for (const char *behind = find(at, end, ' '); at < behind;)
            if (*at == '\\' && behind - at >= 4) {
                *to++ = (char)((at[1] - '0') << 6 | (at[2] - '0') << 3 | (at[3] - '0'));
                at += 4;
            } else {
                *to++ = *at++;
            }
        *to++ = '\0';
    }
    return to;
}

void read_mount_points(void) {
    size_t size = FIRST_TABLE, length = 0;
    char *table = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const int file = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
    if (file < 0 || table == MAP_FAILED) give_up("view", "/proc/self/mountinfo");
    for (ssize_t got; (got = read(file, table + length, size - length)) != 0; length += (size_t)got) {
        if (got < 0) give_up("view", "/proc/self/mountinfo");
        if (length + (size_t)got < size) continue;
        table = mremap(table, size, 2 * size, MREMAP_MAYMOVE);
        if (table == MAP_FAILED) give_up("view", "memory for the mount points");
        size *= 2;
    }
    close(file);
    points.first = table;
    points.end = keep_points(table, table + length);
}

/* Not `lstat`, which is no system call everywhere: a file that is no link is refused with EINVAL. */
static bool is_missing(const char *path) {
    char first;
    return readlink(path, &first, 1) < 0 && errno == ENOENT;
}

static size_t parent_length(const char *path) {
    return (size_t)(strrchr(path, '/') - path);
}

static bool has_same_parent(const char *path, const char *other) {
    const size_t length = parent_length(path);
    return length == parent_length(other) && memcmp(path, other, length) == 0;
}

static bool cover(const char *parent, const char *layer) {
    char layers[2 * PATH_MAX];
    /* The directory itself on top, so that it keeps its owner and mode. */
    char *end = stpcpy(stpcpy(stpcpy(layers, "lowerdir="), on_host(parent)), ":");
    end = stpcpy(end, layer);
    /* The kernel's condition for an overlay made inside a user namespace. */
    if (geteuid() != 0) stpcpy(end, ",userxattr");
    return mount("pgpu", parent, "overlay", MS_RDONLY | MS_NODEV, layers) == 0;
}

static bool is_below(const char *path, const char *directory, size_t length) {
    return strncmp(path, directory, length) == 0 && path[length] == '/';
}

static bool restore_mounts_below(const char *parent) {
    const char *restored = NULL;
    for (const char *point = points.first; point < points.end; point += strlen(point) + 1) {
        if (!is_below(point, parent, strlen(parent))) continue;
        /* The bind is recursive, and of the uppermost of several mounts. */
        if (restored != NULL && (strcmp(point, restored) == 0 || is_below(point, restored, strlen(restored))))
            continue;
        if (mount(on_host(point), point, NULL, MS_BIND | MS_REC, NULL) == 0)
            restored = point;
        else if (errno != ENOENT)
            return false;
    }
    return true;
}

/* Make all names appear that are missing in the directory of the first one. */
static bool make_appear_beside(const struct pair *wanted, int count, bool *missing) {
    static int layer_count;
    char layer[] = LAYERS "/00", parent[PATH_MAX], path[PATH_MAX];
    const char *first = wanted->path;
    layer[sizeof layer - 3] = (char)('0' + layer_count / 10);
    layer[sizeof layer - 2] = (char)('0' + layer_count++ % 10);
    if (mkdir(layer, 0755) != 0) return false;
    for (int i = 0; i < count; i++)
        if (missing[i] && has_same_parent(first, wanted[i].path)) {
            join_path(path, layer, wanted[i].path + parent_length(first));
            touch(path);
            missing[i] = false;
        }
    join_path(parent, first, "");
    parent[parent_length(first)] = '\0';
    return cover(parent, layer) && restore_mounts_below(parent);
}

bool make_appear(const struct pair *wanted, int count) {
    bool missing[MAX_PAIRS];
    for (int i = 0; i < count; i++)
        missing[i] = is_missing(wanted[i].path);
    for (int i = 0; i < count; i++)
        if (missing[i] && !make_appear_beside(wanted + i, count - i, missing + i)) return false;
    return true;
}
