/* Memory queries show the slice as if it were the GPU; the real library's errors are returned unchanged. The
 * BAR1 window belongs to the GPU and is not changed. */
#include <stddef.h>
#include <sys/mman.h>

#include "nvml/nvml_devices.h"
#include "nvml/nvml_slice_view.h"
#include "visible_pid.h"

/* Too large for a small stack; and a lock around one shared copy could be locked in a forked child. */
struct pgpu_reader_view *pgpu_nvml_new_view(void) {
    struct pgpu_reader_view *view =
        mmap(NULL, sizeof(*view), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (view == MAP_FAILED) return NULL;
    if (pgpu_reader_read(pgpu_nvml_limit->usage_path, view) == PGPU_METER_OK) return view;
    pgpu_nvml_delete_view(view);
    return NULL;
}

void pgpu_nvml_delete_view(struct pgpu_reader_view *view) {
    if (view != NULL) munmap(view, sizeof(*view));
}

bool pgpu_nvml_is_of_slice(const struct pgpu_reader_view *view, unsigned pid) {
    for (unsigned i = 0; i < view->slot_count; i++)
        if (view->slot[i].is_alive && pgpu_visible_pid(&view->slot[i]) == pid) return true;
    return false;
}

static unsigned long long smaller(unsigned long long left, unsigned long long right) {
    return left < right ? left : right;
}

struct shown {
    unsigned long long total, used, free;
};

static nvmlReturn_t show(int gpu, unsigned long long real_total, unsigned long long real_free,
                         struct shown *shown) {
    struct pgpu_reader_view *view = pgpu_nvml_new_view();
    if (view == NULL) return NVML_ERROR_UNKNOWN;
    unsigned long long held =
        view->gpu[gpu].used_bytes + pgpu_limit_overhead_bytes(pgpu_nvml_limit, (unsigned)gpu);
    pgpu_nvml_delete_view(view);
    shown->total = smaller(real_total, pgpu_limit_shown_bytes(pgpu_nvml_limit, (unsigned)gpu));
    shown->used = smaller(held, shown->total);
    shown->free = smaller(shown->total - shown->used, real_free);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    nvmlReturn_t result = PGPU_NVML_REAL(nvmlDeviceGetMemoryInfo)(device, memory);
    int gpu = pgpu_nvml_gpu_of(device);
    if (result != NVML_SUCCESS || gpu == PGPU_NO_GPU) return result;
    struct shown shown;
    result = show(gpu, memory->total, memory->free, &shown);
    if (result == NVML_SUCCESS)
        *memory = (nvmlMemory_t){.total = shown.total, .free = shown.free, .used = shown.used};
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlReturn_t result = PGPU_NVML_REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    int gpu = pgpu_nvml_gpu_of(device);
    if (result != NVML_SUCCESS || gpu == PGPU_NO_GPU) return result;
    struct shown shown;
    result = show(gpu, memory->total, memory->free, &shown);
    if (result == NVML_SUCCESS)
        *memory = (nvmlMemory_v2_t){
            .version = memory->version, .total = shown.total, .free = shown.free, .used = shown.used};
    return result;
}
