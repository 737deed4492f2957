/* Pinned host memory: the machine's RAM, which costs the device nothing. */
#include <stdlib.h>

#include "memory/range.h"

#define ALL_ALLOC_FLAGS (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)
#define ALL_REGISTER_FLAGS                                                                                   \
    (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY |              \
     CU_MEMHOSTREGISTER_READ_ONLY)
#define PAGE_BYTES 4096u

static CUresult allocate(CUcontext context, size_t bytes, unsigned flags, void **address) {
    SIM_LOCKED();
    /* Programs write to it themselves, so it has pages in every mode. */
    size_t backed_bytes = sim_round_up(bytes, PAGE_BYTES);
    void *start = aligned_alloc(PAGE_BYTES, backed_bytes);
    struct sim_range *range = start == NULL ? NULL : sim_range_new(SIM_PINNED, (uintptr_t)start, bytes);
    if (range == NULL) {
        free(start);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    range->context = context;
    range->gpu = context->gpu;
    range->device = context->device;
    range->flags = flags;
    *address = start;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned int flags) {
    SIM_ENTER_CONTEXT(context);
    if (address == NULL || bytes == 0 || (flags & ~(unsigned)ALL_ALLOC_FLAGS) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(context, bytes, flags, address);
}

SIM_EXPORT CUresult cuMemAllocHost_v2(void **address, size_t bytes) {
    return cuMemHostAlloc(address, bytes, 0);
}

SIM_EXPORT CUresult cuMemFreeHost(void *address) {
    SIM_ENTER_CONTEXT(context);
    if (address == NULL) return CUDA_SUCCESS;
    sim_context_wait(context);
    SIM_LOCKED();
    struct sim_range *range = sim_range_from(&sim_ranges, (uintptr_t)address);
    if (range == NULL || range->kind != SIM_PINNED) return CUDA_ERROR_INVALID_VALUE;
    sim_range_free(range);
    return CUDA_SUCCESS;
}

static bool overlaps(uintptr_t start, size_t bytes) {
    const struct sim_range *after = sim_range_after(&sim_ranges, start);
    return sim_range_at(&sim_ranges, start) != NULL || (after != NULL && after->start < start + bytes);
}

SIM_EXPORT CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned int flags) {
    SIM_ENTER_CONTEXT(context);
    if (address == NULL || bytes == 0 || (flags & ~(unsigned)ALL_REGISTER_FLAGS) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    if (overlaps((uintptr_t)address, bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    struct sim_range *range = sim_range_new(SIM_REGISTERED, (uintptr_t)address, bytes);
    if (range == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    range->context = context;
    range->gpu = context->gpu;
    range->device = context->device;
    range->flags = flags;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemHostRegister(void *address, size_t bytes, unsigned int flags) {
    return cuMemHostRegister_v2(address, bytes, flags);
}

SIM_EXPORT CUresult cuMemHostUnregister(void *address) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    SIM_LOCKED();
    struct sim_range *range = sim_range_from(&sim_ranges, (uintptr_t)address);
    if (range == NULL || range->kind != SIM_REGISTERED) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    sim_range_delete(range);
    return CUDA_SUCCESS;
}

static const struct sim_range *host_range(const void *address) {
    const struct sim_range *range = sim_range_at(&sim_ranges, (uintptr_t)address);
    bool is_host = range != NULL && (range->kind == SIM_PINNED || range->kind == SIM_REGISTERED);
    return is_host ? range : NULL;
}

SIM_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device_address, void *address,
                                                 unsigned int flags) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    if (device_address == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    if (host_range(address) == NULL) return CUDA_ERROR_INVALID_VALUE;
    *device_address = (uintptr_t)address;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemHostGetFlags(unsigned int *flags, void *address) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    if (flags == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    const struct sim_range *range = host_range(address);
    if (range == NULL) return CUDA_ERROR_INVALID_VALUE;
    *flags = range->flags;
    return CUDA_SUCCESS;
}
