/* Memory queries report the slice instead of the whole GPU. The driver is called first, and its errors are
 * returned unchanged. */
#include "memory/exported_memory.h"
#include "memory/deferred_frees.h"
#include "functions.h"
#include "memory/paging.h"
#include "memory/pools.h"
#include "slice/growth.h"
#include "slice/slice.h"

static uint64_t smaller(uint64_t left, uint64_t right) {
    return left < right ? left : right;
}

static uint64_t shown_total_bytes(int gpu, uint64_t device_bytes) {
    return smaller(device_bytes, pgpu_limit_shown_bytes(pgpu_slice_limit(), (unsigned)gpu));
}

/* Memory that dead processes of the job or unused pool blocks hold counts as free. If the device itself is
 * full, its own figure is returned, unless memory can be released there. */
static uint64_t shown_free_bytes(int gpu, uint64_t device_free_bytes) {
    pgpu_deferred_frees_settle();
    pgpu_exported_memory_settle();
    pgpu_pools_settle_all();
    pgpu_meter_reap(&pgpu_slice_meter, (unsigned)gpu);
    uint64_t limit_bytes = pgpu_limit_bytes(pgpu_slice_limit(), (unsigned)gpu);
    uint64_t used_bytes = pgpu_meter_total_bytes(&pgpu_slice_meter, (unsigned)gpu);
    uint64_t free_bytes = limit_bytes > used_bytes ? limit_bytes - used_bytes : 0;
    if (!pgpu_paging_is_on()) free_bytes = smaller(device_free_bytes, free_bytes);
    pgpu_growth_note_shown((unsigned)gpu, free_bytes);
    return free_bytes;
}

static unsigned int clamp(uint64_t bytes) {
    return bytes > UINT32_MAX ? UINT32_MAX : (unsigned int)bytes;
}

static int current_gpu(void) {
    CUdevice ordinal;
    return PGPU_REAL(cuCtxGetDevice)(&ordinal) == CUDA_SUCCESS ? pgpu_slice_gpu_of(ordinal) : PGPU_NO_GPU;
}

PGPU_EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    CUresult result = PGPU_REAL(cuMemGetInfo_v2)(free_bytes, total_bytes);
    if (result != CUDA_SUCCESS) return result;
    int gpu = current_gpu();
    if (gpu == PGPU_NO_GPU) return result;
    if (free_bytes != NULL) *free_bytes = shown_free_bytes(gpu, *free_bytes);
    if (total_bytes != NULL) *total_bytes = shown_total_bytes(gpu, *total_bytes);
    return result;
}

PGPU_EXPORT CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total_bytes) {
    CUresult result = PGPU_REAL(cuMemGetInfo)(free_bytes, total_bytes);
    if (result != CUDA_SUCCESS) return result;
    int gpu = current_gpu();
    if (gpu == PGPU_NO_GPU) return result;
    if (free_bytes != NULL) *free_bytes = clamp(shown_free_bytes(gpu, *free_bytes));
    if (total_bytes != NULL) *total_bytes = clamp(shown_total_bytes(gpu, *total_bytes));
    return result;
}

PGPU_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal) {
    CUresult result = PGPU_REAL(cuDeviceTotalMem_v2)(bytes, ordinal);
    int gpu = pgpu_slice_gpu_of(ordinal);
    if (result == CUDA_SUCCESS && bytes != NULL && gpu != PGPU_NO_GPU)
        *bytes = shown_total_bytes(gpu, *bytes);
    return result;
}

PGPU_EXPORT CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice ordinal) {
    CUresult result = PGPU_REAL(cuDeviceTotalMem)(bytes, ordinal);
    int gpu = pgpu_slice_gpu_of(ordinal);
    if (result == CUDA_SUCCESS && bytes != NULL && gpu != PGPU_NO_GPU)
        *bytes = clamp(shown_total_bytes(gpu, *bytes));
    return result;
}
