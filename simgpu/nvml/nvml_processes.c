/* Which processes hold a GPU's memory, in the three versions of NVML's structure. Every process of the
 * simulated driver computes; there are neither graphics nor MPS clients. */
#include <string.h>

#include "nvml/nvml_state.h"
#include "visible_pid.h"

/* Where an entry goes: version 1 is 16 bytes long, versions 2 and 3 are 24. */
struct target {
    void *entries;
    size_t entry_bytes;
    unsigned room;
    unsigned count;
};

static void add(struct target *target, unsigned pid, unsigned gpu, uint64_t used_bytes) {
    bool is_instance = sim_is_instance(&sim_nvml.config, gpu);
    const struct sim_gpu *device = sim_nvml_gpu(gpu);
    nvmlProcessInfo_v2_t entry = {
        .pid = pid,
        .usedGpuMemory = device->hides_processes != 0 ? NVML_NOT_AVAILABLE_U64 : used_bytes,
        .gpuInstanceId = is_instance ? (unsigned)device->gpu_instance : NVML_NO_INSTANCE,
        .computeInstanceId = is_instance ? (unsigned)device->compute_instance : NVML_NO_INSTANCE};
    if (target->count < target->room)
        memcpy((char *)target->entries + target->count * target->entry_bytes, &entry, target->entry_bytes);
    target->count++;
}

static void add_all(struct target *target, const struct pgpu_reader_view *view, unsigned gpu) {
    for (unsigned i = 0; i < view->slot_count; i++) {
        const struct pgpu_reader_slot *slot = &view->slot[i];
        if (!slot->is_alive || slot->used_bytes[gpu] == 0) continue;
        unsigned pid = pgpu_visible_pid(slot);
        if (pid != 0) add(target, pid, gpu, sim_nvml_held_bytes(slot, gpu));
    }
}

static nvmlReturn_t give(nvmlDevice_t device, unsigned int *count, void *entries, size_t entry_bytes) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(count != NULL && (entries != NULL || *count == 0));
    struct target target = {.entries = entries, .entry_bytes = entry_bytes, .room = *count};
    struct pgpu_reader_view *view = sim_nvml_new_view();
    if (view == NULL) return NVML_ERROR_UNKNOWN;
    for (unsigned i = 0; i < sim_nvml.config.device_count; i++)
        if (i == gpu || sim_nvml_gpu(i)->parent == gpu) add_all(&target, view, i);
    sim_nvml_delete_view(view);
    *count = target.count;
    return target.count > target.room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t give_none(nvmlDevice_t device, unsigned int *count) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(count != NULL);
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                  nvmlProcessInfo_v1_t *infos) {
    return give(device, count, infos, sizeof(*infos));
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_v2_t *infos) {
    return give(device, count, infos, sizeof(*infos));
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_t *infos) {
    return give(device, count, infos, sizeof(*infos));
}

#define NO_PROCESSES(name, type)                                                                             \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, type *infos) {                               \
        (void)infos;                                                                                         \
        return give_none(device, count);                                                                     \
    }

NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)
