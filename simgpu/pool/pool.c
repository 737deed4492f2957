/* Pools' memory, and the calls that allocate and free in stream order. */
#include "pool/pool.h"

#include "managed/residency.h"
#include "stream/capture.h"
#include "stream/stream.h"
#include "stream/work.h"

#define UNIT_BYTES 512u
/* A pool takes memory from the device in these steps, so that small allocations cost no reservation each. */
#define STEP_BYTES (2u << 20)

struct sim_slab sim_pools = SIM_SLAB(struct CUmemPoolHandle_st, 256, 1u << 14);

CUmemoryPool sim_pool_new(CUdevice device, CUmemAllocationType type, const CUmemLocation *location) {
    CUmemoryPool pool = sim_new(&sim_pools);
    if (pool == NULL) return NULL;
    pool->device = device;
    pool->gpu = sim_driver.gpu_of_device[device];
    pool->is_default = true;
    pool->properties.allocType = type;
    pool->properties.location = *location;
    pool->reuse_follow_events = pool->reuse_opportunistic = pool->reuse_internal = 1;
    return pool;
}

static CUresult reserve(const struct CUmemPoolHandle_st *pool, uint64_t bytes) {
    if (sim_pool_is_managed(pool)) return sim_residency_add(pool->gpu, bytes);
    return sim_pool_is_on_host(pool) ? CUDA_SUCCESS : sim_device_reserve(pool->gpu, bytes);
}

static void refund(const struct CUmemPoolHandle_st *pool, uint64_t bytes) {
    if (sim_pool_is_managed(pool))
        sim_residency_remove(pool->gpu, bytes);
    else if (!sim_pool_is_on_host(pool))
        sim_device_refund(pool->gpu, bytes);
}

/* Whole steps while the device has them, else just what is missing. */
static CUresult grow(CUmemoryPool pool, uint64_t missing_bytes) {
    uint64_t step_bytes = sim_round_up(missing_bytes, STEP_BYTES);
    if (pool->is_imported) return CUDA_SUCCESS;
    if (reserve(pool, step_bytes) != CUDA_SUCCESS) {
        step_bytes = missing_bytes;
        SIM_TRY(reserve(pool, step_bytes));
    }
    pool->reserved_bytes += step_bytes;
    if (pool->reserved_bytes > pool->reserved_high_bytes) pool->reserved_high_bytes = pool->reserved_bytes;
    return CUDA_SUCCESS;
}

CUresult sim_pool_prepare(CUmemoryPool pool, uint64_t bytes) {
    uint64_t spare_bytes = pool->reserved_bytes - pool->used_bytes;
    return bytes > spare_bytes ? grow(pool, bytes - spare_bytes) : CUDA_SUCCESS;
}

CUresult sim_pool_take(CUmemoryPool pool, uint64_t bytes) {
    uint64_t most_bytes = pool->properties.maxSize;
    if (most_bytes != 0 && pool->used_bytes + bytes > most_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    SIM_TRY(sim_pool_prepare(pool, bytes));
    pool->used_bytes += bytes;
    if (pool->used_bytes > pool->used_high_bytes) pool->used_high_bytes = pool->used_bytes;
    return CUDA_SUCCESS;
}

CUresult sim_pool_allocate(CUmemoryPool pool, CUcontext context, size_t bytes, CUdeviceptr *address) {
    size_t taken_bytes = sim_round_up(bytes, UNIT_BYTES);
    if (taken_bytes < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    SIM_TRY(sim_pool_take(pool, taken_bytes));
    uintptr_t start = sim_backing_map(taken_bytes, UNIT_BYTES);
    struct sim_range *range = start == 0 ? NULL : sim_range_new(SIM_POOLED, start, bytes);
    if (range == NULL) {
        if (start != 0) sim_backing_unmap(start, taken_bytes);
        pool->used_bytes -= taken_bytes;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    range->backed_bytes = range->pooled_bytes = taken_bytes;
    range->gpu = pool->gpu;
    range->device = pool->device;
    range->context = context;
    range->pool = pool;
    range->is_managed = sim_pool_is_managed(pool);
    *address = start;
    return CUDA_SUCCESS;
}

void sim_pool_trim_to(CUmemoryPool pool, uint64_t keep_bytes) {
    if (keep_bytes < pool->used_bytes) keep_bytes = pool->used_bytes;
    if (pool->reserved_bytes <= keep_bytes) return;
    refund(pool, pool->reserved_bytes - keep_bytes);
    pool->reserved_bytes = keep_bytes;
}

void sim_pool_free(struct sim_range *range) {
    CUmemoryPool pool = range->pool;
    size_t bytes = range->pooled_bytes;
    sim_range_free(range);
    pool->used_bytes -= bytes;
    if (!pool->is_destroyed) return;
    sim_pool_trim_to(pool, 0);
    if (pool->used_bytes == 0) sim_delete(&sim_pools, pool);
}

void sim_pools_trim(unsigned gpu) {
    if (__atomic_load_n(&sim_pools.used, __ATOMIC_ACQUIRE) == 0) return;
    SIM_LOCKED();
    for (uint32_t i = 0; i < sim_pools.used; i++) {
        CUmemoryPool pool = sim_at(&sim_pools, i);
        if (pool != NULL && pool->gpu == gpu) sim_pool_trim_to(pool, pool->release_threshold_bytes);
    }
}

static CUresult allocate(CUmemoryPool pool, CUstream stream, size_t bytes, CUdeviceptr *address) {
    if (stream->capture != NULL) return sim_capture_allocate(stream, pool, bytes, address);
    SIM_TRY(sim_capture_forbids_legacy(stream));
    return sim_pool_allocate(pool, stream->context, bytes, address);
}

SIM_EXPORT CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream named) {
    SIM_ENTER_CONTEXT(context);
    CUstream stream;
    (void)context;
    if (address == NULL || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_stream_of(named, &stream));
    SIM_LOCKED();
    CUmemoryPool pool = sim_pool_of_device(stream->context->device);
    return pool == NULL ? CUDA_ERROR_OUT_OF_MEMORY : allocate(pool, stream, bytes, address);
}

SIM_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
                                            CUstream named) {
    SIM_ENTER_CONTEXT(context);
    CUstream stream;
    (void)context;
    if (address == NULL || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_stream_of(named, &stream));
    SIM_LOCKED();
    if (!sim_pool_is(pool)) return CUDA_ERROR_INVALID_VALUE;
    return allocate(pool, stream, bytes, address);
}

/* Ordinary memory may be freed in stream order too; then the stream is waited for. */
static CUresult free_ordinary(CUstream stream, CUdeviceptr address) {
    sim_stream_wait(stream);
    return cuMemFree_v2(address);
}

static bool is_pooled(CUdeviceptr address, bool *is_known) {
    SIM_LOCKED();
    struct sim_range *range = sim_range_from(&sim_ranges, address);
    *is_known = range != NULL;
    return range != NULL && range->pool != NULL;
}

SIM_EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream named) {
    SIM_ENTER_CONTEXT(context);
    CUstream stream;
    bool is_known;
    (void)context;
    SIM_TRY(sim_stream_of(named, &stream));
    if (address == 0) return CUDA_ERROR_INVALID_VALUE;
    struct sim_work work = {.kind = SIM_WORK_FREE, .address = address};
    if (stream->capture != NULL) return sim_submit(stream, &work);
    bool is_in_pool = is_pooled(address, &is_known);
    if (!is_known) return CUDA_ERROR_INVALID_VALUE;
    return is_in_pool ? sim_submit(stream, &work) : free_ordinary(stream, address);
}

/* A managed pool has no size of its own and cannot be shared; every device must page. */
static CUresult check_properties(const CUmemPoolProps *properties) {
    if (properties == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_pool_check_place(&properties->location, properties->allocType));
    bool is_managed = properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
    bool is_local = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if ((is_managed || !is_local) && properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_INVALID_VALUE;
    return is_managed && properties->maxSize + properties->usage != 0 ? CUDA_ERROR_INVALID_VALUE
                                                                      : CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    SIM_ENTER();
    if (pool == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check_properties(properties));
    SIM_LOCKED();
    *pool =
        sim_pool_new(sim_pool_device_of(&properties->location), properties->allocType, &properties->location);
    if (*pool == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    (*pool)->is_default = false;
    (*pool)->properties = *properties;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    SIM_ENTER();
    SIM_LOCKED();
    if (!sim_pool_is(pool) || pool->is_default) return CUDA_ERROR_INVALID_VALUE;
    sim_pool_leave_place(pool);
    pool->is_destroyed = true;
    sim_pool_trim_to(pool, 0);
    if (pool->used_bytes == 0) sim_delete(&sim_pools, pool);
    return CUDA_SUCCESS;
}
