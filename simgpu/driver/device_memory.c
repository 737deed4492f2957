/* A device's memory, counted over all processes by the meter. A process's share comes back when it is dead
 * and no forked child holds the descriptors it inherited. */
#include <stdio.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "driver/driver.h"
#include "state/group_limits.h"
#include "lock.h"
#include "meter.h"
#include "mps/mps.h"
#include "managed/residency.h"

static struct pgpu_meter meter = PGPU_METER_INIT;

bool sim_device_claim(const char *directory, unsigned gpu_count, char *problem, size_t problem_bytes) {
    char path[SIM_PATH_BYTES];
    int fd = sim_shared_open(directory, "memory", sizeof(struct pgpu_usage));
    if (fd < 0 || !sim_state_path(directory, "memory", path)) {
        snprintf(problem, problem_bytes, "cannot write %s/memory", directory);
        return false;
    }
    close(fd);
    enum pgpu_meter_status status = pgpu_meter_claim(&meter, path, gpu_count);
    if (status != PGPU_METER_OK) snprintf(problem, problem_bytes, "%s: %s", path, pgpu_meter_explain(status));
    sim_driver.slot = meter.slot;
    sim_groups_begin(directory, &meter, gpu_count);
    return status == PGPU_METER_OK;
}

CUresult sim_device_reserve(unsigned gpu, uint64_t bytes) {
    uint64_t limit_bytes = sim_driver.config.gpu[gpu].memory_bytes;
    if (!sim_mps_reserve(gpu, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!sim_groups_reserve(gpu, bytes)) {
        sim_mps_refund(gpu, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    enum pgpu_meter_status status = pgpu_meter_reserve(&meter, gpu, bytes, limit_bytes, NULL);
    if (status == PGPU_METER_OK) {
        if (sim_driver.activity != NULL) sim_residency_make_room(gpu);
        return CUDA_SUCCESS;
    }
    sim_groups_refund(gpu, bytes);
    sim_mps_refund(gpu, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

void sim_device_refund(unsigned gpu, uint64_t bytes) {
    pgpu_meter_refund(&meter, gpu, bytes);
    sim_groups_refund(gpu, bytes);
    sim_mps_refund(gpu, bytes);
}

uint64_t sim_device_total_bytes(unsigned gpu) {
    return pgpu_meter_total_bytes(&meter, gpu);
}

void sim_device_reap(unsigned gpu) {
    pgpu_meter_reap(&meter, gpu);
}

uint64_t sim_device_used_bytes(unsigned gpu) {
    sim_device_reap(gpu);
    return pgpu_meter_total_bytes(&meter, gpu) + sim_residency_bytes(gpu);
}

uint64_t sim_device_own_bytes(unsigned gpu) {
    return pgpu_meter_own_bytes(&meter, gpu);
}

bool sim_device_slot_is_alive(unsigned slot) {
    int fd = sim_shared_open(sim_driver.directory, "memory", 0);
    if (fd < 0) return true;
    bool is_alive = pgpu_is_locked(fd, PGPU_LOCK_ALIVE + slot);
    close(fd);
    return is_alive;
}

uint64_t sim_device_slot_owner(unsigned slot) {
    const struct pgpu_usage_slot *owner = &meter.usage->slot[slot];
    uint64_t pid = __atomic_load_n(&owner->pid, __ATOMIC_RELAXED);
    uint64_t start = __atomic_load_n(&owner->start_time_ticks, __ATOMIC_RELAXED);
    uint64_t space = __atomic_load_n(&owner->pid_namespace, __ATOMIC_RELAXED);
    return sim_checkpoint_owner(pid, start, space);
}
