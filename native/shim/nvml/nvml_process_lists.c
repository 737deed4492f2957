/* Process lists contain the slice's own processes, with the meter's figures: a job sees no neighbour, and it
 * sees itself in a container, where the real library's list is often empty. */
#include <stddef.h>
#include <string.h>

#include "nvml/nvml_devices.h"
#include "nvml/nvml_slice_view.h"
#include "visible_pid.h"

/* The place of an entry: version 1 has 16 bytes, versions 2 and 3 have 24, and a detail 32, each the
 * beginning of the next. */
struct target {
    void *entries;
    size_t entry_bytes;
    unsigned room;
    unsigned count;
};

static void add(struct target *target, unsigned pid, uint64_t used_bytes) {
    nvmlProcessDetail_v1_t entry = {.pid = pid,
                                    .usedGpuMemory = used_bytes,
                                    .gpuInstanceId = NVML_NO_INSTANCE,
                                    .computeInstanceId = NVML_NO_INSTANCE};
    if (target->count < target->room)
        memcpy((char *)target->entries + target->count * target->entry_bytes, &entry, target->entry_bytes);
    target->count++;
}

static nvmlReturn_t add_slice(struct target *target, int gpu) {
    struct pgpu_reader_view *view = pgpu_nvml_new_view();
    if (view == NULL) return NVML_ERROR_UNKNOWN;
    for (unsigned i = 0; i < view->slot_count; i++) {
        const struct pgpu_reader_slot *slot = &view->slot[i];
        bool is_listed = slot->is_alive && slot->used_bytes[gpu] > 0;
        unsigned pid = is_listed ? pgpu_visible_pid(slot) : 0;
        if (pid != 0) add(target, pid, slot->used_bytes[gpu]);
    }
    pgpu_nvml_delete_view(view);
    return target->count > target->room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* The real library decides whether the arguments are valid; its list is not used. */
static nvmlReturn_t check(nvmlReturn_t result) {
    return result == NVML_ERROR_INSUFFICIENT_SIZE ? NVML_SUCCESS : result;
}

static nvmlReturn_t list(int gpu, unsigned int *count, void *entries, size_t entry_bytes) {
    if (entries == NULL && *count != 0) return NVML_ERROR_INVALID_ARGUMENT;
    struct target target = {.entries = entries, .entry_bytes = entry_bytes, .room = *count};
    nvmlReturn_t result = add_slice(&target, gpu);
    if (result != NVML_ERROR_UNKNOWN) *count = target.count;
    return result;
}

/* The meter counts compute processes; graphics processes are not metered, and MPS clients are listed as
 * compute processes. */
static nvmlReturn_t list_none(unsigned int *count) {
    *count = 0;
    return NVML_SUCCESS;
}

/* Call the real library with room for no entry, so that it writes nothing; then write our own list. */
#define LIST(name, type, answer)                                                                             \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, type *infos) {                               \
        int gpu = pgpu_nvml_gpu_of(device);                                                                  \
        if (gpu == PGPU_NO_GPU || count == NULL) return PGPU_NVML_REAL(name)(device, count, infos);          \
        unsigned int no_room = 0;                                                                            \
        nvmlReturn_t result = check(PGPU_NVML_REAL(name)(device, &no_room, NULL));                           \
        return result == NVML_SUCCESS ? answer : result;                                                     \
    }

LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, list(gpu, count, infos, sizeof(*infos)))
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, list(gpu, count, infos, sizeof(*infos)))
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, list(gpu, count, infos, sizeof(*infos)))
LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, ((void)infos, list_none(count)))
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, ((void)infos, list_none(count)))
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, ((void)infos, list_none(count)))
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, ((void)infos, list_none(count)))
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, ((void)infos, list_none(count)))
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, ((void)infos, list_none(count)))

#define DETAIL_MODE_COMPUTE 0u

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *details) {
    int gpu = pgpu_nvml_gpu_of(device);
    if (gpu == PGPU_NO_GPU || details == NULL)
        return PGPU_NVML_REAL(nvmlDeviceGetRunningProcessDetailList)(device, details);
    nvmlProcessDetailList_t question = {.version = details->version, .mode = details->mode};
    nvmlReturn_t result = check(PGPU_NVML_REAL(nvmlDeviceGetRunningProcessDetailList)(device, &question));
    if (result != NVML_SUCCESS) return result;
    if (details->mode != DETAIL_MODE_COMPUTE) return list_none(&details->numProcArrayEntries);
    return list(gpu, &details->numProcArrayEntries, details->procArray, sizeof(*details->procArray));
}

/* Keep the entries of the slice's processes. An entry has its PID at offset `pid_at`. */
static nvmlReturn_t keep_own(void *entries, size_t entry_bytes, size_t pid_at, unsigned int *count) {
    struct pgpu_reader_view *view = pgpu_nvml_new_view();
    if (view == NULL) return NVML_ERROR_UNKNOWN;
    unsigned kept = 0;
    for (unsigned i = 0; i < *count; i++) {
        char *entry = (char *)entries + i * entry_bytes;
        unsigned pid;
        memcpy(&pid, entry + pid_at, sizeof(pid));
        if (!pgpu_nvml_is_of_slice(view, pid)) continue;
        memmove((char *)entries + kept++ * entry_bytes, entry, entry_bytes);
    }
    memset((char *)entries + kept * entry_bytes, 0, (*count - kept) * entry_bytes);
    *count = kept;
    pgpu_nvml_delete_view(view);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long last_seen_us) {
    nvmlReturn_t result =
        PGPU_NVML_REAL(nvmlDeviceGetProcessUtilization)(device, samples, count, last_seen_us);
    if (result != NVML_SUCCESS || samples == NULL) return result;
    return keep_own(samples, sizeof(*samples), offsetof(nvmlProcessUtilizationSample_t, pid), count);
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   nvmlProcessesUtilizationInfo_t *info) {
    nvmlReturn_t result = PGPU_NVML_REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, info);
    if (result != NVML_SUCCESS || info->procUtilArray == NULL) return result;
    return keep_own(info->procUtilArray, sizeof(*info->procUtilArray),
                    offsetof(nvmlProcessUtilizationInfo_v1_t, pid), &info->processSamplesCount);
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids) {
    nvmlReturn_t result = PGPU_NVML_REAL(nvmlDeviceGetAccountingPids)(device, count, pids);
    if (result != NVML_SUCCESS || pids == NULL) return result;
    return keep_own(pids, sizeof(*pids), 0, count);
}
