/* Memory limits of control groups, as NVML sets them (nvmlDeviceSetMemoryLimits_v1) and as the CUDA half
 * applies them: a process in a limited group, or in one below it, is refused what would take the group's
 * processes together past the limit. Each limited group has a usage file of native/meter of its own.
 *
 * A group is identified by device and inode of its directory, which no cgroup namespace changes: a container
 * that mounts its own group as the root is still found. One that mounts no cgroup file system is not. */
#ifndef SIM_GROUP_LIMITS_H
#define SIM_GROUP_LIMITS_H

#include <sys/types.h>

#include "meter.h"
#include "state/state.h"

#define SIM_LIMITED_GROUPS 64
#define SIM_NO_LIMIT       UINT64_MAX

struct sim_limited_group {
    uint64_t device, inode; /* of the directory; inode 0: this row is free */
    uint64_t soft_bytes[SIM_MAX_GPUS];
    uint64_t hard_bytes[SIM_MAX_GPUS]; /* may change at any time */
    char path[SIM_PATH_BYTES];
};

/* The file `limits`. */
struct sim_group_limits {
    uint64_t generation; /* raised after each change */
    struct sim_limited_group group[SIM_LIMITED_GROUPS];
};

/* Map the limits; NULL on failure. */
struct sim_group_limits *sim_group_limits_map(const char *directory);

/* Write the path of the usage file of row `row`. */
bool sim_group_limits_usage_path(const char *directory, unsigned row, char path[SIM_PATH_BYTES]);

/* Fill `rows` with the rows that hold for the calling process; return their number. */
unsigned sim_group_limits_of_process(const struct sim_group_limits *limits,
                                     unsigned rows[SIM_LIMITED_GROUPS]);

/* Apply the groups' limits to this process, whose device memory `own` counts; before its first reservation.
 */
void sim_groups_begin(const char *directory, struct pgpu_meter *own, unsigned gpu_count);

/* Take bytes from every group that this process is in, or none. */
bool sim_groups_reserve(unsigned gpu, uint64_t bytes);
void sim_groups_refund(unsigned gpu, uint64_t bytes);

#endif
