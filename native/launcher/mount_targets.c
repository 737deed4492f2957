/* A bind mount needs a file to lie on. A directory that lacks it is covered by a read-only overlay of itself
 * and of a scratch directory with empty files of the missing names; what is mounted below it is bound into
 * the overlay again. */
#include "mount_targets.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "view.h"

static bool is_missing(const char *path) {
    char target[PATH_MAX];
    struct stat info;
    join_path(target, NEW_ROOT, path);
    return lstat(target, &info) != 0 && errno == ENOENT;
}

static size_t parent_length(const char *path) {
    return (size_t)(strrchr(path, '/') - path);
}

static bool has_same_parent(const char *path, const char *other) {
    const size_t length = parent_length(path);
    return length == parent_length(other) && memcmp(path, other, length) == 0;
}

/* Empty files for every missing name that shares a directory with `first`. */
static void write_names(const char *layer, const char *first, const struct pair *wanted, int count) {
    char path[PATH_MAX];
    for (int i = 0; i < count; i++) {
        if (!has_same_parent(first, wanted[i].path)) continue;
        if (is_missing(wanted[i].path)) {
            join_path(path, layer, wanted[i].path + parent_length(wanted[i].path));
            touch(path);
        }
    }
}

static bool cover(const char *layer, const char *parent) {
    char target[PATH_MAX], layers[2 * PATH_MAX];
    join_path(target, NEW_ROOT, parent);
    /* The directory itself on top, so that it keeps its owner and mode.
     * userxattr: the kernel's condition for an overlay made inside a user namespace. */
    snprintf(layers, sizeof layers, "lowerdir=" OLD_ROOT "%s:%s%s", parent, layer,
             geteuid() == 0 ? "" : ",userxattr");
    return mount("pgpu", target, "overlay", MS_RDONLY | MS_NODEV, layers) == 0;
}

/* The mount point of a line of mountinfo (its fifth field), with the kernel's octal escapes undone; NULL if
 * it is not below the directory. */
static const char *mount_below(char *line, const char *directory) {
    char *rest = line, *point = NULL;
    for (int field = 0; field < 5; field++)
        point = strsep(&rest, " ");
    const size_t length = strlen(directory);
    if (point == NULL || strncmp(point, directory, length) != 0 || point[length] != '/') return NULL;
    char *to = point;
    for (const char *from = point; *from != '\0';) {
        unsigned code;
        if (*from == '\\' && sscanf(from + 1, "%3o", &code) == 1) {
            *to++ = (char)code;
            from += 4;
        } else {
            *to++ = *from++;
        }
    }
    *to = '\0';
    return point;
}

static bool restore_mount(const char *below_old_root) {
    char target[PATH_MAX];
    join_path(target, NEW_ROOT, below_old_root + strlen(OLD_ROOT));
    return mount(below_old_root, target, NULL, MS_BIND | MS_REC, NULL) == 0 || errno == ENOENT;
}

static bool restore_mounts_below(const char *parent) {
    char directory[PATH_MAX];
    join_path(directory, OLD_ROOT, parent);
    FILE *table = fopen(NEW_ROOT "/proc/self/mountinfo", "re");
    if (table == NULL) return false;
    char *line = NULL;
    size_t size = 0;
    bool is_whole = true;
    while (is_whole && getline(&line, &size, table) > 0) {
        const char *point = mount_below(line, directory);
        if (point != NULL) is_whole = restore_mount(point);
    }
    free(line);
    fclose(table);
    return is_whole;
}

static bool make_appear_beside(const char *first, const struct pair *wanted, int count) {
    char layer[] = SCRATCH "/XXXXXX", parent[PATH_MAX];
    if (mkdtemp(layer) == NULL || chmod(layer, 0755) != 0) return false;
    write_names(layer, first, wanted, count);
    snprintf(parent, sizeof parent, "%.*s", (int)parent_length(first), first);
    return cover(layer, parent) && restore_mounts_below(parent);
}

bool make_appear(const struct pair *wanted, int count) {
    for (int i = 0; i < count; i++)
        if (is_missing(wanted[i].path) && !make_appear_beside(wanted[i].path, wanted, count)) return false;
    return true;
}
