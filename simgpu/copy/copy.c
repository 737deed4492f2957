/* Copies of plain bytes, in every form the driver has. */
#include "copy/place.h"

CUresult sim_check_device(CUdeviceptr address, size_t bytes) {
    SIM_LOCKED();
    if (!sim_is_device_memory(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    const struct sim_range *range = sim_memory_at(address);
    return range->kind == SIM_MAPPING && !range->is_accessible ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

bool sim_is_on_device(uintptr_t address) {
    SIM_LOCKED();
    const struct sim_range *range = sim_memory_at(address);
    return range != NULL && range->kind != SIM_PINNED && range->kind != SIM_REGISTERED;
}

static bool is_known(uintptr_t address) {
    SIM_LOCKED();
    return sim_range_at(&sim_ranges, address) != NULL;
}

/* What is the driver's must be inside an allocation; the host's memory is the client's own affair. */
static CUresult check_place(uintptr_t address, size_t bytes) {
    if (address == 0) return CUDA_ERROR_INVALID_VALUE;
    return is_known(address) ? sim_check_device(address, bytes) : CUDA_SUCCESS;
}

static void describe(uintptr_t to, uintptr_t from, size_t bytes, struct sim_work *work) {
    *work =
        (struct sim_work){.kind = SIM_WORK_COPY,
                          .copy = {.to = to, .from = from, .width_bytes = bytes, .height = 1, .depth = 1}};
    work->copy.crosses_bus = !sim_is_on_device(to) || !sim_is_on_device(from);
}

enum direction { ANY, TO_DEVICE, TO_HOST, INSIDE };

static CUresult check_ends(enum direction direction, uintptr_t to, uintptr_t from, size_t bytes) {
    SIM_TRY(check_place(to, bytes));
    SIM_TRY(check_place(from, bytes));
    if (direction == TO_DEVICE || direction == INSIDE) SIM_TRY(sim_check_device(to, bytes));
    if (direction == TO_HOST || direction == INSIDE) SIM_TRY(sim_check_device(from, bytes));
    return CUDA_SUCCESS;
}

/* `is_async` false: to the default stream, and wait. */
static CUresult copy(enum direction direction, uintptr_t to, uintptr_t from, size_t bytes, CUstream named,
                     bool is_async) {
    SIM_ENTER_CONTEXT(context);
    CUstream stream;
    struct sim_work work;
    (void)context;
    SIM_TRY(sim_stream_of(named, &stream));
    if (bytes == 0) return CUDA_SUCCESS;
    /* What a capturing stream copies may be allocated by the graph itself. */
    if (stream->capture == NULL) SIM_TRY(check_ends(direction, to, from, bytes));
    describe(to, from, bytes, &work);
    return is_async ? sim_submit(stream, &work) : sim_submit_and_wait(stream, &work);
}

SIM_EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy(ANY, to, from, bytes, NULL, false);
}

SIM_EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(ANY, to, from, bytes, stream, true);
}

SIM_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return copy(TO_DEVICE, to, (uintptr_t)from, bytes, NULL, false);
}

SIM_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return copy(TO_DEVICE, to, (uintptr_t)from, bytes, stream, true);
}

SIM_EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return copy(TO_HOST, (uintptr_t)to, from, bytes, NULL, false);
}

SIM_EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(TO_HOST, (uintptr_t)to, from, bytes, stream, true);
}

SIM_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy(INSIDE, to, from, bytes, NULL, false);
}

SIM_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(INSIDE, to, from, bytes, stream, true);
}

static CUresult copy_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                          size_t bytes, CUstream stream, bool is_async) {
    SIM_ENTER();
    if (!sim_is_context(to_context) || !sim_is_context(from_context)) return CUDA_ERROR_INVALID_CONTEXT;
    return copy(INSIDE, to, from, bytes, stream, is_async);
}

SIM_EXPORT CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                 CUcontext from_context, size_t bytes) {
    return copy_peer(to, to_context, from, from_context, bytes, NULL, false);
}

SIM_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                      CUcontext from_context, size_t bytes, CUstream stream) {
    return copy_peer(to, to_context, from, from_context, bytes, stream, true);
}

SIM_EXPORT CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                                          CUmemcpyAttributes *attributes, size_t *attribute_starts,
                                          size_t attribute_count, CUstream stream) {
    SIM_ENTER();
    if (count == 0 || to == NULL || from == NULL || bytes == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (attribute_count > 0 && (attributes == NULL || attribute_starts == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    bool is_legacy = stream == CU_STREAM_LEGACY || (stream == NULL && !sim_is_per_thread_call);
    if (is_legacy) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        SIM_TRY(copy(ANY, to[i], from[i], bytes[i], stream, true));
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                                       CUmemcpyAttributes *attributes, size_t *attribute_starts,
                                       size_t attribute_count, size_t *failed_index, CUstream stream) {
    CUresult result =
        cuMemcpyBatchAsync_v2(to, from, bytes, count, attributes, attribute_starts, attribute_count, stream);
    if (result != CUDA_SUCCESS && failed_index != NULL) *failed_index = SIZE_MAX;
    return result;
}
