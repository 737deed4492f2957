/* Stream-ordered allocation, and the synchronisations at which a pool gives memory back. */
#include "slice/charge.h"
#include "memory/deferred_frees.h"
#include "functions.h"
#include "time/gate.h"
#include "slice/holdings.h"
#include "memory/pools.h"
#include "slice/slice.h"
#include "memory/vmm.h"

static void note_pool(CUmemoryPool pool, int gpu) {
    struct pgpu_holding row = {.key = (uint64_t)pool, .count = 1, .kind = PGPU_KIND_POOL, .gpu = (int8_t)gpu};
    pgpu_holdings_put(&row);
}

PGPU_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    bool is_charged;
    CUresult result = PGPU_REAL(cuMemPoolCreate)(pool, properties);
    if (result != CUDA_SUCCESS) return result;
    int gpu = pgpu_pools_gpu_of(properties->allocType, &properties->location, &is_charged);
    /* A GPU outside the lease has no room for pools. */
    if (is_charged && gpu == PGPU_NO_GPU) {
        PGPU_REAL(cuMemPoolDestroy)(*pool);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    /* A pool that is never charged has a row, too. */
    note_pool(*pool, gpu);
    return result;
}

/* In a capture nothing is allocated: a graph gets a node, and its memory is charged when it is instantiated.
 */
static bool is_capturing(CUstream stream, bool is_per_thread) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = is_per_thread ? PGPU_REAL(cuStreamIsCapturing_ptsz)(stream, &status)
                                    : PGPU_REAL(cuStreamIsCapturing)(stream, &status);
    return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static bool is_pool_of(CUdevice ordinal, CUmemoryPool pool) {
    CUmemoryPool own = NULL;
    if (PGPU_REAL(cuDeviceGetDefaultMemPool)(&own, ordinal) == CUDA_SUCCESS && own == pool) return true;
    return PGPU_REAL(cuDeviceGetMemPool)(&own, ordinal) == CUDA_SUCCESS && own == pool;
}

static bool query(CUmemoryPool pool, CUmemPool_attribute name, uint32_t *value) {
    uint64_t answer = 0; /* room for a driver that writes more than an int */
    CUresult result = PGPU_REAL(cuMemPoolGetAttribute)(pool, name, &answer);
    *value = (uint32_t)answer;
    return result == CUDA_SUCCESS;
}

/* The default pools of a device's managed memory and of the host's memory came with CUDA 13, and so did these
 * attributes. */
static bool is_other_default(CUmemoryPool pool, int *gpu) {
    uint32_t type, place, id;
    bool is_charged;
    if (!query(pool, CU_MEMPOOL_ATTR_ALLOCATION_TYPE, &type) ||
        !query(pool, CU_MEMPOOL_ATTR_LOCATION_TYPE, &place) || !query(pool, CU_MEMPOOL_ATTR_LOCATION_ID, &id))
        return false;
    CUmemLocation location = {.type = (CUmemLocationType)place, .id = (int)id};
    bool is_pinned_on_host = type == CU_MEM_ALLOCATION_TYPE_PINNED && pgpu_vmm_is_on_host(&location);
    if (type != CU_MEM_ALLOCATION_TYPE_MANAGED && !is_pinned_on_host) return false;
    *gpu = pgpu_pools_gpu_of((CUmemAllocationType)type, &location, &is_charged);
    if (!is_charged) note_pool(pool, PGPU_NO_GPU); /* that of a charged one is made with its charge */
    return true;
}

/* A pool that was not made through cuMemPoolCreate is a default pool, or belongs to the current device. */
static int gpu_of_pool(CUmemoryPool pool, const struct pgpu_place *place) {
    struct pgpu_holding row;
    int gpu;
    if (pgpu_holdings_find(PGPU_KIND_POOL, (uint64_t)pool, &row)) return row.gpu;
    if (is_other_default(pool, &gpu)) return gpu;
    for (CUdevice ordinal = 0; ordinal < pgpu_slice_device_count(); ordinal++)
        if (is_pool_of(ordinal, pool)) return pgpu_slice_gpu_of(ordinal);
    return place->gpu;
}

/* One allocation in progress. `pool` NULL: the current pool of the stream's device. */
struct request {
    CUdeviceptr *pointer;
    size_t bytes;
    CUmemoryPool pool;
    CUstream stream;
    bool is_per_thread;
    bool names_pool;
};

static CUresult call_driver(const struct request *request) {
    CUdeviceptr *pointer = request->pointer;
    size_t bytes = request->bytes;
    CUstream stream = request->stream;
    if (request->names_pool)
        return request->is_per_thread
                   ? PGPU_REAL(cuMemAllocFromPoolAsync_ptsz)(pointer, bytes, request->pool, stream)
                   : PGPU_REAL(cuMemAllocFromPoolAsync)(pointer, bytes, request->pool, stream);
    return request->is_per_thread ? PGPU_REAL(cuMemAllocAsync_ptsz)(pointer, bytes, stream)
                                  : PGPU_REAL(cuMemAllocAsync)(pointer, bytes, stream);
}

static void take_back(const struct request *request) {
    if (request->is_per_thread)
        PGPU_REAL(cuMemFreeAsync_ptsz)(*request->pointer, request->stream);
    else
        PGPU_REAL(cuMemFreeAsync)(*request->pointer, request->stream);
}

/* Small blocks share a pool's larger ones, in units of 512 B. */
static uint64_t handed_bytes(uint64_t bytes) {
    return bytes > UINT64_MAX - 511 ? bytes : (bytes + 511) & ~511ull;
}

static CUresult confirm(const struct request *request, int gpu, uint64_t pool) {
    CUresult result = pgpu_pools_confirm(pool, gpu);
    if (result == CUDA_SUCCESS) {
        struct pgpu_holding row = {.key = *request->pointer,
                                   .bytes = handed_bytes(request->bytes),
                                   .pool = pool,
                                   .count = 1,
                                   .kind = PGPU_KIND_MEMORY,
                                   .gpu = (int8_t)gpu};
        pgpu_holdings_put(&row);
        return result;
    }
    take_back(request);
    pgpu_pools_give(pool, handed_bytes(request->bytes));
    return result;
}

static CUresult allocate_from(const struct request *request, int gpu, uint64_t pool) {
    struct pgpu_charge charge;
    CUresult result = pgpu_pools_take(pool, gpu, handed_bytes(request->bytes), &charge);
    if (result != CUDA_SUCCESS) return result;
    /* The pool's row keeps the charge either way; a refusal leaves it as slack, which is settled at once. */
    uint64_t charged_bytes = charge.bytes;
    charge.bytes = 0;
    do
        result = call_driver(request);
    while (pgpu_charge_should_retry(&charge, result));
    if (result == CUDA_SUCCESS) return confirm(request, gpu, pool);
    pgpu_pools_give(pool, handed_bytes(request->bytes));
    if (charged_bytes != 0) pgpu_pools_settle_one(pool);
    return result;
}

static CUresult allocate(struct request *request) {
    struct pgpu_place place;
    if (is_capturing(request->stream, request->is_per_thread)) return call_driver(request);
    CUresult result = pgpu_slice_of_stream(request->stream, request->is_per_thread, &place);
    if (result == CUDA_SUCCESS && !request->names_pool)
        result = PGPU_REAL(cuDeviceGetMemPool)(&request->pool, place.ordinal);
    if (result != CUDA_SUCCESS || request->pool == NULL)
        return request->names_pool ? call_driver(request) : result;
    struct pgpu_holding row;
    int gpu = gpu_of_pool(request->pool, &place);
    bool is_host_pool =
        gpu == PGPU_NO_GPU && pgpu_holdings_find(PGPU_KIND_POOL, (uint64_t)request->pool, &row);
    return is_host_pool ? call_driver(request) : allocate_from(request, gpu, (uint64_t)request->pool);
}

PGPU_EXPORT CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    struct request request = {.pointer = pointer, .bytes = bytes, .stream = stream};
    return allocate(&request);
}

PGPU_EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    struct request request = {.pointer = pointer, .bytes = bytes, .stream = stream, .is_per_thread = true};
    return allocate(&request);
}

PGPU_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                             CUstream stream) {
    struct request request = {
        .pointer = pointer, .bytes = bytes, .pool = pool, .stream = stream, .names_pool = true};
    return allocate(&request);
}

PGPU_EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                                  CUstream stream) {
    struct request request = {.pointer = pointer,
                              .bytes = bytes,
                              .pool = pool,
                              .stream = stream,
                              .is_per_thread = true,
                              .names_pool = true};
    return allocate(&request);
}

/* A pool reports what was returned to it; of other memory the stream must have reached the free. */
static CUresult finish_free(const struct pgpu_holding *row, CUstream stream, bool is_per_thread,
                            CUresult result) {
    if (result != CUDA_SUCCESS)
        pgpu_holdings_put(row);
    else if (row->pool != 0)
        pgpu_pools_freed(row);
    else
        pgpu_deferred_frees_begin(row, stream, is_per_thread);
    return result;
}

PGPU_EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    struct pgpu_holding row;
    if (is_capturing(stream, false)) return PGPU_REAL(cuMemFreeAsync)(pointer, stream);
    bool is_known = pgpu_holdings_take(PGPU_KIND_MEMORY, pointer, &row);
    CUresult result = PGPU_REAL(cuMemFreeAsync)(pointer, stream);
    return is_known ? finish_free(&row, stream, false, result) : result;
}

PGPU_EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    struct pgpu_holding row;
    if (is_capturing(stream, true)) return PGPU_REAL(cuMemFreeAsync_ptsz)(pointer, stream);
    bool is_known = pgpu_holdings_take(PGPU_KIND_MEMORY, pointer, &row);
    CUresult result = PGPU_REAL(cuMemFreeAsync_ptsz)(pointer, stream);
    return is_known ? finish_free(&row, stream, true, result) : result;
}

static CUresult after_synchronisation(CUresult result) {
    pgpu_gate_after_synchronisation();
    pgpu_deferred_frees_settle();
    pgpu_pools_settle_all();
    return result;
}

PGPU_EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    pgpu_gate_before_synchronisation();
    return after_synchronisation(PGPU_REAL(cuStreamSynchronize)(stream));
}

PGPU_EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    pgpu_gate_before_synchronisation();
    return after_synchronisation(PGPU_REAL(cuStreamSynchronize_ptsz)(stream));
}

PGPU_EXPORT CUresult cuCtxSynchronize(void) {
    pgpu_gate_before_synchronisation();
    return after_synchronisation(PGPU_REAL(cuCtxSynchronize)());
}

PGPU_EXPORT CUresult cuCtxSynchronize_v2(CUcontext context) {
    pgpu_gate_before_synchronisation();
    return after_synchronisation(PGPU_REAL(cuCtxSynchronize_v2)(context));
}

PGPU_EXPORT CUresult cuEventSynchronize(CUevent event) {
    pgpu_gate_before_synchronisation();
    return after_synchronisation(PGPU_REAL(cuEventSynchronize)(event));
}
