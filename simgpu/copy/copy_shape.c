/* Copies of rows and slices, between memory and arrays. */
#include "texture/array.h"
#include "copy/place.h"

/* One end of a copy, whatever it is, as an address with strides. */
struct end {
    uintptr_t at;
    size_t row_bytes, slice_bytes;
    bool is_on_device;
};

struct side {
    size_t x_bytes, y, z;
    CUmemorytype type;
    uintptr_t host;
    CUdeviceptr device;
    CUarray array;
    size_t pitch, height;
};

static CUresult resolve_array(const struct side *side, const CUDA_MEMCPY3D *shape, struct end *end) {
    CUarray array = side->array;
    if (!sim_is_array(array)) return CUDA_ERROR_INVALID_HANDLE;
    if (side->x_bytes + shape->WidthInBytes > array->row_bytes || side->y + shape->Height > array->rows ||
        side->z + shape->Depth > array->slices)
        return CUDA_ERROR_INVALID_VALUE;
    *end = (struct end){array->start, array->row_bytes, array->row_bytes * array->rows, true};
    return CUDA_SUCCESS;
}

static CUresult resolve_memory(const struct side *side, const CUDA_MEMCPY3D *shape, struct end *end) {
    bool is_device = side->type != CU_MEMORYTYPE_HOST;
    size_t pitch = side->pitch == 0 ? shape->WidthInBytes + side->x_bytes : side->pitch;
    size_t height = side->height == 0 ? shape->Height + side->y : side->height;
    if (pitch < shape->WidthInBytes + side->x_bytes) return CUDA_ERROR_INVALID_VALUE;
    if (shape->Depth > 1 && height < shape->Height + side->y) return CUDA_ERROR_INVALID_VALUE;
    *end = (struct end){is_device ? side->device : side->host, pitch, pitch * height, is_device};
    if (end->at == 0) return CUDA_ERROR_INVALID_VALUE;
    if (side->type == CU_MEMORYTYPE_UNIFIED) end->is_on_device = sim_is_on_device(end->at);
    return CUDA_SUCCESS;
}

static size_t span_bytes(const struct end *end, const CUDA_MEMCPY3D *shape) {
    return (shape->Depth - 1) * end->slice_bytes + (shape->Height - 1) * end->row_bytes + shape->WidthInBytes;
}

static CUresult resolve(const struct side *side, const CUDA_MEMCPY3D *shape, bool is_now, struct end *end) {
    bool is_array = side->type == CU_MEMORYTYPE_ARRAY;
    if (side->type < CU_MEMORYTYPE_HOST || side->type > CU_MEMORYTYPE_UNIFIED)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(is_array ? resolve_array(side, shape, end) : resolve_memory(side, shape, end));
    end->at += side->x_bytes + side->y * end->row_bytes + side->z * end->slice_bytes;
    return is_array || !end->is_on_device || !is_now ? CUDA_SUCCESS
                                                     : sim_check_device(end->at, span_bytes(end, shape));
}

CUresult sim_copy_shaped(const CUDA_MEMCPY3D *shape, bool is_now, struct sim_work *work) {
    struct side from_side = {
        shape->srcXInBytes, shape->srcY,     shape->srcZ,     shape->srcMemoryType, (uintptr_t)shape->srcHost,
        shape->srcDevice,   shape->srcArray, shape->srcPitch, shape->srcHeight};
    struct side to_side = {shape->dstXInBytes,        shape->dstY,      shape->dstZ,     shape->dstMemoryType,
                           (uintptr_t)shape->dstHost, shape->dstDevice, shape->dstArray, shape->dstPitch,
                           shape->dstHeight};
    struct end from, to;
    *work = (struct sim_work){.kind = SIM_WORK_NOTHING};
    if (shape->WidthInBytes == 0 || shape->Height == 0 || shape->Depth == 0) return CUDA_SUCCESS;
    SIM_TRY(resolve(&from_side, shape, is_now, &from));
    SIM_TRY(resolve(&to_side, shape, is_now, &to));
    work->kind = SIM_WORK_COPY;
    work->copy = (struct sim_copy){.to = to.at,
                                   .from = from.at,
                                   .width_bytes = shape->WidthInBytes,
                                   .height = shape->Height,
                                   .depth = shape->Depth,
                                   .to_row_bytes = to.row_bytes,
                                   .from_row_bytes = from.row_bytes,
                                   .to_slice_bytes = to.slice_bytes,
                                   .from_slice_bytes = from.slice_bytes,
                                   .crosses_bus = !from.is_on_device || !to.is_on_device};
    return CUDA_SUCCESS;
}

static CUresult copy(const CUDA_MEMCPY3D *shape, CUstream named, bool is_async) {
    SIM_ENTER_CONTEXT(context);
    CUstream stream;
    struct sim_work work;
    (void)context;
    if (shape == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_stream_of(named, &stream));
    SIM_TRY(sim_copy_shaped(shape, stream->capture == NULL, &work));
    return is_async ? sim_submit(stream, &work) : sim_submit_and_wait(stream, &work);
}

static CUDA_MEMCPY3D of_flat(const CUDA_MEMCPY2D *flat) {
    return (CUDA_MEMCPY3D){.srcXInBytes = flat->srcXInBytes,
                           .srcY = flat->srcY,
                           .srcMemoryType = flat->srcMemoryType,
                           .srcHost = flat->srcHost,
                           .srcDevice = flat->srcDevice,
                           .srcArray = flat->srcArray,
                           .srcPitch = flat->srcPitch,
                           .dstXInBytes = flat->dstXInBytes,
                           .dstY = flat->dstY,
                           .dstMemoryType = flat->dstMemoryType,
                           .dstHost = flat->dstHost,
                           .dstDevice = flat->dstDevice,
                           .dstArray = flat->dstArray,
                           .dstPitch = flat->dstPitch,
                           .WidthInBytes = flat->WidthInBytes,
                           .Height = flat->Height,
                           .Depth = 1};
}

static CUDA_MEMCPY3D of_peer(const CUDA_MEMCPY3D_PEER *peer) {
    return (CUDA_MEMCPY3D){.srcXInBytes = peer->srcXInBytes,
                           .srcY = peer->srcY,
                           .srcZ = peer->srcZ,
                           .srcMemoryType = peer->srcMemoryType,
                           .srcHost = peer->srcHost,
                           .srcDevice = peer->srcDevice,
                           .srcArray = peer->srcArray,
                           .srcPitch = peer->srcPitch,
                           .srcHeight = peer->srcHeight,
                           .dstXInBytes = peer->dstXInBytes,
                           .dstY = peer->dstY,
                           .dstZ = peer->dstZ,
                           .dstMemoryType = peer->dstMemoryType,
                           .dstHost = peer->dstHost,
                           .dstDevice = peer->dstDevice,
                           .dstArray = peer->dstArray,
                           .dstPitch = peer->dstPitch,
                           .dstHeight = peer->dstHeight,
                           .WidthInBytes = peer->WidthInBytes,
                           .Height = peer->Height,
                           .Depth = peer->Depth};
}

SIM_EXPORT CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *shape) {
    return copy(shape, NULL, false);
}

SIM_EXPORT CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *shape, CUstream stream) {
    return copy(shape, stream, true);
}

SIM_EXPORT CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *flat) {
    if (flat == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D shape = of_flat(flat);
    return copy(&shape, NULL, false);
}

SIM_EXPORT CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *flat) {
    return cuMemcpy2D_v2(flat);
}

SIM_EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *flat, CUstream stream) {
    if (flat == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D shape = of_flat(flat);
    return copy(&shape, stream, true);
}

SIM_EXPORT CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *peer) {
    if (peer == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D shape = of_peer(peer);
    return copy(&shape, NULL, false);
}

SIM_EXPORT CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *peer, CUstream stream) {
    if (peer == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D shape = of_peer(peer);
    return copy(&shape, stream, true);
}

/* The one-dimensional calls on arrays are copies of one row. */
static CUresult copy_row(CUDA_MEMCPY3D shape, size_t bytes, CUstream stream, bool is_async) {
    shape.WidthInBytes = bytes;
    shape.Height = shape.Depth = 1;
    return copy(&shape, stream, is_async);
}

SIM_EXPORT CUresult cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t bytes) {
    CUDA_MEMCPY3D shape = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = from,
                           .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                           .dstArray = to,
                           .dstXInBytes = offset};
    return copy_row(shape, bytes, NULL, false);
}

SIM_EXPORT CUresult cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t bytes) {
    CUDA_MEMCPY3D shape = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                           .srcArray = from,
                           .srcXInBytes = offset,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = to};
    return copy_row(shape, bytes, NULL, false);
}

static CUDA_MEMCPY3D into_array(CUarray to, size_t offset, const void *from) {
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_HOST,
                           .srcHost = from,
                           .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                           .dstArray = to,
                           .dstXInBytes = offset};
}

static CUDA_MEMCPY3D from_array(void *to, CUarray from, size_t offset) {
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                           .srcArray = from,
                           .srcXInBytes = offset,
                           .dstMemoryType = CU_MEMORYTYPE_HOST,
                           .dstHost = to};
}

SIM_EXPORT CUresult cuMemcpyHtoA_v2(CUarray to, size_t offset, const void *from, size_t bytes) {
    return copy_row(into_array(to, offset, from), bytes, NULL, false);
}

SIM_EXPORT CUresult cuMemcpyHtoAAsync_v2(CUarray to, size_t offset, const void *from, size_t bytes,
                                         CUstream stream) {
    return copy_row(into_array(to, offset, from), bytes, stream, true);
}

SIM_EXPORT CUresult cuMemcpyAtoH_v2(void *to, CUarray from, size_t offset, size_t bytes) {
    return copy_row(from_array(to, from, offset), bytes, NULL, false);
}

SIM_EXPORT CUresult cuMemcpyAtoHAsync_v2(void *to, CUarray from, size_t offset, size_t bytes,
                                         CUstream stream) {
    return copy_row(from_array(to, from, offset), bytes, stream, true);
}

SIM_EXPORT CUresult cuMemcpyAtoA_v2(CUarray to, size_t to_offset, CUarray from, size_t from_offset,
                                    size_t bytes) {
    CUDA_MEMCPY3D shape = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                           .srcArray = from,
                           .srcXInBytes = from_offset,
                           .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                           .dstArray = to,
                           .dstXInBytes = to_offset};
    return copy_row(shape, bytes, NULL, false);
}
