/* Which control groups are limited, and which of them the calling process is in. */
#include "state/group_limits.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE_BYTES 4096

struct sim_group_limits *sim_group_limits_map(const char *directory) {
    int fd = sim_shared_open(directory, "limits", sizeof(struct sim_group_limits));
    if (fd < 0) return NULL;
    void *at = mmap(NULL, sizeof(struct sim_group_limits), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return at == MAP_FAILED ? NULL : at;
}

bool sim_group_limits_usage_path(const char *directory, unsigned row, char path[SIM_PATH_BYTES]) {
    char name[32];
    snprintf(name, sizeof(name), "limited-%u", row);
    return sim_state_path(directory, name, path);
}

struct search {
    const struct sim_group_limits *limits;
    bool is_in[SIM_LIMITED_GROUPS];
};

static void note_directory(struct search *search, const char *path) {
    struct stat status;
    if (stat(path, &status) != 0) return;
    for (unsigned row = 0; row < SIM_LIMITED_GROUPS; row++) {
        const struct sim_limited_group *group = &search->limits->group[row];
        if (__atomic_load_n(&group->inode, __ATOMIC_ACQUIRE) == status.st_ino &&
            group->device == status.st_dev)
            search->is_in[row] = true;
    }
}

/* The group's own directory and all above it, up to the mount. */
static void note_ancestors(struct search *search, const char *mount, const char *group) {
    char path[LINE_BYTES];
    size_t mount_length = strlen(mount);
    if ((size_t)snprintf(path, sizeof(path), "%s%s", mount, group) >= sizeof(path)) return;
    while (strlen(path) > mount_length) {
        note_directory(search, path);
        *strrchr(path, '/') = '\0';
    }
    note_directory(search, mount);
}

/* The process's group in every hierarchy, below one mount; in the others the path leads nowhere or to the
 * mount. */
static void note_mount(struct search *search, const char *mount) {
    char line[LINE_BYTES];
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (file == NULL) return;
    while (fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        const char *controllers = strchr(line, ':');
        const char *group = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (group != NULL) note_ancestors(search, mount, group + 1);
    }
    fclose(file);
}

/* A mount's fifth word is where it lies, and its type stands behind " - ". */
static bool read_mount(const char *line, char mount[LINE_BYTES]) {
    const char *type = strstr(line, " - cgroup");
    return type != NULL && sscanf(line, "%*s %*s %*s %*s %4095s", mount) == 1;
}

static bool has_rows(const struct sim_group_limits *limits) {
    for (unsigned row = 0; row < SIM_LIMITED_GROUPS; row++)
        if (__atomic_load_n(&limits->group[row].inode, __ATOMIC_ACQUIRE) != 0) return true;
    return false;
}

unsigned sim_group_limits_of_process(const struct sim_group_limits *limits,
                                     unsigned rows[SIM_LIMITED_GROUPS]) {
    struct search search = {.limits = limits};
    char line[LINE_BYTES], mount[LINE_BYTES];
    FILE *file = has_rows(limits) ? fopen("/proc/self/mountinfo", "re") : NULL;
    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        if (read_mount(line, mount)) note_mount(&search, mount);
    if (file != NULL) fclose(file);
    unsigned count = 0;
    for (unsigned row = 0; row < SIM_LIMITED_GROUPS; row++)
        if (search.is_in[row]) rows[count++] = row;
    return count;
}
