/* How much memory a GPU has and how much of it is held. */
#include <sys/mman.h>

#include "nvml/nvml_state.h"

#define BAR1_BYTES (256ull << 20)

/* Until the first CUDA program there is no such file, and nothing is used. */
static bool read_view(struct pgpu_reader_view *view) {
    char path[SIM_PATH_BYTES];
    if (!sim_state_path(sim_nvml.directory, "memory", path)) return false;
    enum pgpu_meter_status status = pgpu_reader_read(path, view);
    return status == PGPU_METER_OK || status == PGPU_METER_UNREADABLE;
}

/* Too large for a small stack, and a lock around one copy could be inherited held by a forked child. */
struct pgpu_reader_view *sim_nvml_new_view(void) {
    void *at = mmap(NULL, sizeof(struct pgpu_reader_view), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return NULL;
    if (read_view(at)) return at;
    sim_nvml_delete_view(at);
    return NULL;
}

void sim_nvml_delete_view(struct pgpu_reader_view *view) {
    if (view != NULL) munmap(view, sizeof(*view));
}

static uint64_t resident_bytes(const struct pgpu_reader_slot *slot, unsigned gpu) {
    if (sim_nvml.activity == NULL || !slot->is_alive) return 0;
    return __atomic_load_n(&sim_nvml.activity->gpu[gpu].slot[slot->slot].resident_bytes, __ATOMIC_RELAXED);
}

uint64_t sim_nvml_held_bytes(const struct pgpu_reader_slot *slot, unsigned gpu) {
    return slot->is_alive ? slot->used_bytes[gpu] + resident_bytes(slot, gpu) : 0;
}

static uint64_t all_resident_bytes(const struct pgpu_reader_view *view, unsigned gpu) {
    uint64_t sum_bytes = 0;
    for (unsigned i = 0; i < view->slot_count; i++)
        sum_bytes += resident_bytes(&view->slot[i], gpu);
    return sum_bytes;
}

/* Of a GPU: with what its instances hold. */
static nvmlReturn_t read_used_bytes(unsigned gpu, unsigned long long *used_bytes) {
    struct pgpu_reader_view *view = sim_nvml_new_view();
    if (view == NULL) return NVML_ERROR_UNKNOWN;
    *used_bytes = 0;
    for (unsigned i = 0; i < sim_nvml.config.device_count; i++)
        if (i == gpu || sim_nvml_gpu(i)->parent == gpu)
            *used_bytes += view->gpu[i].used_bytes + all_resident_bytes(view, i);
    sim_nvml_delete_view(view);
    return NVML_SUCCESS;
}

static unsigned long long at_most(unsigned long long bytes, unsigned long long most_bytes) {
    return bytes < most_bytes ? bytes : most_bytes;
}

/* Version 1 counts what the driver reserves as used. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(memory != NULL);
    NVML_REQUIRE_OWN_MEMORY(gpu);
    unsigned long long used_bytes = 0;
    nvmlReturn_t result = read_used_bytes(gpu, &used_bytes);
    const struct sim_gpu *found = sim_nvml_gpu(gpu);
    memory->total = found->memory_bytes + found->reserved_bytes;
    memory->used = at_most(found->reserved_bytes + used_bytes, memory->total);
    memory->free = memory->total - memory->used;
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(memory != NULL);
    if (memory->version != NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    NVML_REQUIRE_OWN_MEMORY(gpu);
    unsigned long long used_bytes = 0;
    nvmlReturn_t result = read_used_bytes(gpu, &used_bytes);
    const struct sim_gpu *found = sim_nvml_gpu(gpu);
    memory->total = found->memory_bytes + found->reserved_bytes;
    memory->reserved = found->reserved_bytes;
    memory->used = at_most(used_bytes, found->memory_bytes);
    memory->free = found->memory_bytes - memory->used;
    return result;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(memory != NULL);
    *memory = (nvmlBAR1Memory_t){.bar1Total = BAR1_BYTES, .bar1Free = BAR1_BYTES};
    return NVML_SUCCESS;
}
