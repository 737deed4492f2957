/* Memory limits of control groups, set and queried as in NVML since r615. Only root may set one. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state/group_limits.h"
#include "nvml/nvml_state.h"

static bool is_group(const struct sim_limited_group *group, const struct stat *status) {
    return group->inode == status->st_ino && group->device == status->st_dev;
}

/* A row is free when it is unused or when its group has ended. */
static bool is_free(const struct sim_limited_group *group) {
    struct stat status;
    return group->inode == 0 || stat(group->path, &status) != 0 || !is_group(group, &status);
}

static int find(const struct sim_group_limits *limits, const struct stat *status) {
    for (int row = 0; row < SIM_LIMITED_GROUPS; row++)
        if (is_group(&limits->group[row], status)) return row;
    return -1;
}

/* Begin a row in which no GPU is limited; -1: every row is taken. */
static int begin(struct sim_group_limits *limits, const char *path, const struct stat *status) {
    char usage[SIM_PATH_BYTES];
    for (unsigned row = 0; row < SIM_LIMITED_GROUPS; row++) {
        struct sim_limited_group *group = &limits->group[row];
        if (!is_free(group) || !sim_group_limits_usage_path(sim_nvml.directory, row, usage)) continue;
        int fd = sim_shared_open(sim_nvml.directory, strrchr(usage, '/') + 1, sizeof(struct pgpu_usage));
        if (fd < 0) return -1;
        close(fd);
        __atomic_store_n(&group->inode, 0, __ATOMIC_RELEASE);
        memset(group->soft_bytes, 0xff, sizeof(group->soft_bytes));
        memset(group->hard_bytes, 0xff, sizeof(group->hard_bytes));
        snprintf(group->path, sizeof(group->path), "%s", path);
        group->device = status->st_dev;
        __atomic_store_n(&group->inode, status->st_ino, __ATOMIC_RELEASE);
        return (int)row;
    }
    return -1;
}

static nvmlReturn_t set(struct sim_group_limits *limits, unsigned gpu, const nvmlSetMemoryLimits_v1_t *wanted,
                        const struct stat *status) {
    int row = find(limits, status);
    if (row < 0) row = begin(limits, wanted->nameSpace, status);
    if (row < 0) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    struct sim_limited_group *group = &limits->group[row];
    __atomic_store_n(&group->soft_bytes[gpu], wanted->softLimit, __ATOMIC_RELAXED);
    __atomic_store_n(&group->hard_bytes[gpu], wanted->hardLimit, __ATOMIC_RELAXED);
    __atomic_fetch_add(&limits->generation, 1, __ATOMIC_ACQ_REL);
    return NVML_SUCCESS;
}

/* Setters take turns; allocating processes only read. */
static int take_turn(void) {
    int fd = sim_shared_open(sim_nvml.directory, "limits", sizeof(struct sim_group_limits));
    if (fd >= 0 && flock(fd, LOCK_EX) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static nvmlReturn_t check_group(const char *path, struct stat *status) {
    if (path == NULL || strlen(path) >= SIM_PATH_BYTES) return NVML_ERROR_INVALID_ARGUMENT;
    if (stat(path, status) != 0) return errno == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_NOT_FOUND;
    return S_ISDIR(status->st_mode) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *wanted) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(wanted != NULL && wanted->softLimit <= wanted->hardLimit);
    NVML_REQUIRE_NO_MIG(gpu);
    if (geteuid() != 0) return NVML_ERROR_NO_PERMISSION;
    struct stat status;
    nvmlReturn_t result = check_group(wanted->nameSpace, &status);
    if (result != NVML_SUCCESS) return result;
    int turn = take_turn();
    struct sim_group_limits *limits = turn < 0 ? NULL : sim_group_limits_map(sim_nvml.directory);
    result = limits == NULL ? NVML_ERROR_OPERATING_SYSTEM : set(limits, gpu, wanted, &status);
    if (limits != NULL) munmap(limits, sizeof(*limits));
    if (turn >= 0) close(turn);
    return result;
}

static unsigned long long group_used_bytes(unsigned row, unsigned gpu) {
    char path[SIM_PATH_BYTES];
    struct pgpu_reader_view *view =
        mmap(NULL, sizeof(*view), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (view == MAP_FAILED) return 0;
    bool is_read = sim_group_limits_usage_path(sim_nvml.directory, row, path) &&
                   pgpu_reader_read(path, view) == PGPU_METER_OK;
    unsigned long long used_bytes = is_read ? view->gpu[gpu].used_bytes : 0;
    sim_nvml_delete_view(view);
    return used_bytes;
}

/* A group without a limit has the largest there is. */
nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *found) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(found != NULL);
    NVML_REQUIRE_NO_MIG(gpu);
    struct stat status;
    nvmlReturn_t result = check_group(found->nameSpace, &status);
    if (result != NVML_SUCCESS) return result;
    struct sim_group_limits *limits = sim_group_limits_map(sim_nvml.directory);
    if (limits == NULL) return NVML_ERROR_OPERATING_SYSTEM;
    int row = find(limits, &status);
    found->softLimit = row < 0 ? NVML_DEVICE_MEMORY_LIMIT_MAX : limits->group[row].soft_bytes[gpu];
    found->hardLimit = row < 0 ? NVML_DEVICE_MEMORY_LIMIT_MAX : limits->group[row].hard_bytes[gpu];
    found->currentUsed = row < 0 ? 0 : group_used_bytes((unsigned)row, gpu);
    munmap(limits, sizeof(*limits));
    return NVML_SUCCESS;
}
