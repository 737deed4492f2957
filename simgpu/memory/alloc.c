/* Ordinary device memory: cuMemAlloc, pitched and managed memory, and what they are freed by. */
#include "mps/mps.h"
#include "pool/pool.h"
#include "memory/range.h"
#include "managed/residency.h"
#include "stream/stream.h"

/* Device memory is given out in these units. */
#define UNIT_BYTES  512u
#define PITCH_BYTES 512u

/* Memory that pages takes of the device as far as it is resident. */
static bool is_paged(CUcontext context, enum sim_range_kind kind) {
    return kind == SIM_MANAGED && sim_residency_pages(&sim_driver.config.gpu[context->gpu]);
}

static CUresult charge(CUcontext context, enum sim_range_kind kind, size_t bytes) {
    return is_paged(context, kind) ? sim_residency_add(context->gpu, bytes)
                                   : sim_device_reserve(context->gpu, bytes);
}

static void refund(CUcontext context, enum sim_range_kind kind, size_t bytes) {
    if (is_paged(context, kind))
        sim_residency_remove(context->gpu, bytes);
    else
        sim_device_refund(context->gpu, bytes);
}

/* Charge, map and enter, or leave nothing behind. */
static CUresult allocate(CUcontext context, enum sim_range_kind kind, size_t bytes, CUdeviceptr *address) {
    size_t whole_bytes = sim_round_up(bytes, UNIT_BYTES);
    if (whole_bytes < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    SIM_TRY(charge(context, kind, whole_bytes));
    SIM_LOCKED();
    uintptr_t start = sim_backing_map(whole_bytes, UNIT_BYTES);
    struct sim_range *range = start == 0 ? NULL : sim_range_new(kind, start, bytes);
    if (range == NULL) {
        if (start != 0) sim_backing_unmap(start, whole_bytes);
        refund(context, kind, whole_bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    range->backed_bytes = whole_bytes;
    range->charged_bytes = is_paged(context, kind) ? 0 : whole_bytes;
    range->paged_bytes = whole_bytes - range->charged_bytes;
    range->context = context;
    range->gpu = context->gpu;
    range->device = context->device;
    *address = start;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    SIM_ENTER_CONTEXT(context);
    if (address == NULL || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    return allocate(context, SIM_DEVICE, bytes, address);
}

SIM_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width_bytes, size_t height,
                                       unsigned int element_bytes) {
    SIM_ENTER_CONTEXT(context);
    if (address == NULL || pitch == NULL || width_bytes == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
    if (element_bytes != 4 && element_bytes != 8 && element_bytes != 16) return CUDA_ERROR_INVALID_VALUE;
    size_t row_bytes = sim_round_up(width_bytes, PITCH_BYTES), bytes;
    if (row_bytes < width_bytes || __builtin_mul_overflow(row_bytes, height, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    SIM_TRY(allocate(context, SIM_DEVICE, bytes, address));
    *pitch = row_bytes;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags) {
    SIM_ENTER_CONTEXT(context);
    if (address == NULL || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
    return allocate(context, SIM_MANAGED, bytes, address);
}

static bool is_freed_by_memfree(enum sim_range_kind kind) {
    return kind == SIM_DEVICE || kind == SIM_MANAGED || kind == SIM_POOLED || kind == SIM_IMPORTED;
}

static CUresult free_now(uintptr_t address) {
    SIM_LOCKED();
    struct sim_range *range = sim_range_from(&sim_ranges, address);
    if (range == NULL || !is_freed_by_memfree(range->kind)) return CUDA_ERROR_INVALID_VALUE;
    /* A window into a peer's or an interface's memory is closed by its own call, except a mapped buffer. */
    if (range->kind == SIM_IMPORTED && range->handle == 0 && range->pool == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (range->pool != NULL)
        sim_pool_free(range);
    else
        sim_range_free(range);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
    SIM_ENTER_CONTEXT(context);
    if (address == 0) return CUDA_SUCCESS;
    /* Freeing waits for the device, as NVIDIA's driver does. */
    if (sim_driver.has_backing) sim_context_wait(context);
    return free_now(address);
}

SIM_EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    SIM_ENTER_CONTEXT(context);
    if (free_bytes == NULL && total_bytes == NULL) return CUDA_ERROR_INVALID_VALUE;
    uint64_t all_bytes = sim_driver.config.gpu[context->gpu].memory_bytes;
    uint64_t used_bytes = sim_device_used_bytes(context->gpu);
    if (total_bytes != NULL) *total_bytes = all_bytes;
    uint64_t left_bytes = used_bytes < all_bytes ? all_bytes - used_bytes : 0;
    if (free_bytes != NULL) *free_bytes = sim_mps_free_bytes(context->gpu, left_bytes);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    SIM_LOCKED();
    const struct sim_range *range = sim_memory_at(address);
    if (range == NULL) return CUDA_ERROR_NOT_FOUND;
    if (base != NULL) *base = range->start;
    if (bytes != NULL) *bytes = range->bytes;
    return CUDA_SUCCESS;
}
