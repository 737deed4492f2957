/* Copies with attributes, and batches of shaped ones. The attributes are about order and hints, which a
 * device that copies at once keeps anyway. */
#include "texture/array.h"
#include "copy/place.h"

static CUresult check_order(CUmemcpySrcAccessOrder order) {
    bool is_known =
        (int)order > CU_MEMCPY_SRC_ACCESS_ORDER_INVALID && (int)order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
    return is_known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult check_stream(CUstream stream) {
    bool is_legacy = stream == CU_STREAM_LEGACY || (stream == NULL && !sim_is_per_thread_call);
    return is_legacy ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                                CUmemcpyAttributes *attributes, CUstream stream) {
    SIM_ENTER();
    if (attributes == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check_order(attributes->srcAccessOrder));
    return cuMemcpyAsync(to, from, bytes, stream);
}

/* Where a row of an operand begins, and how long its rows and layers are, in bytes. */
struct place {
    bool is_array;
    CUarray array;
    CUdeviceptr address;
    CUoffset3D offset;
    size_t row_elements, layer_rows;
};

static CUresult place_of(const CUmemcpy3DOperand *operand, const CUextent3D *extent, struct place *place) {
    *place = (struct place){.is_array = operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY};
    if (place->is_array) {
        place->array = operand->op.array.array;
        place->offset = operand->op.array.offset;
        return sim_is_array(place->array) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    if (operand->type != CU_MEMCPY_OPERAND_TYPE_POINTER || operand->op.ptr.ptr == 0)
        return CUDA_ERROR_INVALID_VALUE;
    place->address = operand->op.ptr.ptr;
    place->row_elements = operand->op.ptr.rowLength == 0 ? extent->width : operand->op.ptr.rowLength;
    place->layer_rows = operand->op.ptr.layerHeight == 0 ? extent->height : operand->op.ptr.layerHeight;
    return place->row_elements < extent->width || place->layer_rows < extent->height
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_SUCCESS;
}

/* Lengths of an operand in memory are in elements of the other's array, or in bytes where there is none. */
static CUresult shape_of(const CUDA_MEMCPY3D_BATCH_OP *copy, CUDA_MEMCPY3D *shape) {
    struct place from, to;
    SIM_TRY(place_of(&copy->src, &copy->extent, &from));
    SIM_TRY(place_of(&copy->dst, &copy->extent, &to));
    size_t unit = from.is_array ? from.array->element_bytes : to.is_array ? to.array->element_bytes : 1;
    *shape = (CUDA_MEMCPY3D){.srcMemoryType = from.is_array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED,
                             .srcArray = from.array,
                             .srcDevice = from.address,
                             .srcXInBytes = from.offset.x * unit,
                             .srcY = from.offset.y,
                             .srcZ = from.offset.z,
                             .srcPitch = from.row_elements * unit,
                             .srcHeight = from.layer_rows,
                             .dstMemoryType = to.is_array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED,
                             .dstArray = to.array,
                             .dstDevice = to.address,
                             .dstXInBytes = to.offset.x * unit,
                             .dstY = to.offset.y,
                             .dstZ = to.offset.z,
                             .dstPitch = to.row_elements * unit,
                             .dstHeight = to.layer_rows,
                             .WidthInBytes = copy->extent.width * unit,
                             .Height = copy->extent.height,
                             .Depth = copy->extent.depth};
    return CUDA_SUCCESS;
}

static CUresult copy_one(const CUDA_MEMCPY3D_BATCH_OP *copy, CUstream stream) {
    CUDA_MEMCPY3D shape;
    const CUextent3D *extent = &copy->extent;
    if (extent->width == 0 || extent->height == 0 || extent->depth == 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check_order(copy->srcAccessOrder));
    {
        SIM_LOCKED();
        SIM_TRY(shape_of(copy, &shape));
    }
    return cuMemcpy3DAsync_v2(&shape, stream);
}

SIM_EXPORT CUresult cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *copy, unsigned long long flags,
                                                  CUstream stream) {
    SIM_ENTER();
    if (copy == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return copy_one(copy, stream);
}

SIM_EXPORT CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP *copies,
                                            unsigned long long flags, CUstream stream) {
    SIM_ENTER();
    if (count == 0 || copies == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check_stream(stream));
    for (size_t i = 0; i < count; i++)
        SIM_TRY(copy_one(&copies[i], stream));
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, size_t *failed_index,
                                         unsigned long long flags, CUstream stream) {
    CUresult result = cuMemcpy3DBatchAsync_v2(count, copies, flags, stream);
    if (result != CUDA_SUCCESS && failed_index != NULL) *failed_index = SIZE_MAX;
    return result;
}
