/* Making and describing arrays. */
#include "texture/array.h"

#include <string.h>

#include "stream/stream.h"

#define UNIT_BYTES 512u

struct sim_slab sim_arrays = SIM_SLAB(struct CUarray_st, 256, 1u << 18);
static struct sim_slab mipmaps = SIM_SLAB(struct CUmipmappedArray_st, 512, 1u << 16);

static size_t format_bytes(CUarray_format format) {
    switch ((int)format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4;
    default:
        return 0;
    }
}

static size_t at_least_one(size_t value) {
    return value == 0 ? 1 : value;
}

static bool is_valid(const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    unsigned channels = descriptor->NumChannels;
    if (channels != 1 && channels != 2 && channels != 4) return false;
    return descriptor->Width > 0 && descriptor->Width <= (1u << 28) && descriptor->Height <= (1u << 20) &&
           descriptor->Depth <= (1u << 20) && format_bytes(descriptor->Format) > 0;
}

static void set_shape(CUarray array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    array->descriptor = *descriptor;
    array->element_bytes = format_bytes(descriptor->Format) * descriptor->NumChannels;
    array->row_bytes = descriptor->Width * array->element_bytes;
    array->rows = at_least_one(descriptor->Height);
    array->slices = at_least_one(descriptor->Depth);
    array->bytes = array->row_bytes * array->rows * array->slices;
}

static CUresult back(CUarray array) {
    size_t bytes = sim_round_up(array->bytes, UNIT_BYTES);
    SIM_TRY(sim_device_reserve(array->context->gpu, bytes));
    array->start = sim_backing_map(bytes, UNIT_BYTES);
    if (array->start == 0) {
        sim_device_refund(array->context->gpu, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    array->backed_bytes = bytes;
    return CUDA_SUCCESS;
}

/* Under sim_lock, like all that are not called by clients. */
static CUresult make(CUcontext context, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUarray *made) {
    CUarray array = sim_new(&sim_arrays);
    if (array == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    array->context = context;
    set_shape(array, descriptor);
    CUresult result = back(array);
    if (result == CUDA_SUCCESS)
        *made = array;
    else
        sim_delete(&sim_arrays, array);
    return result;
}

static void end(CUarray array) {
    unsigned gpu = array->context->gpu;
    size_t bytes = array->backed_bytes;
    if (bytes > 0) sim_backing_unmap(array->start, bytes);
    sim_delete(&sim_arrays, array);
    if (bytes > 0) sim_device_refund(gpu, bytes);
}

SIM_EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    SIM_ENTER_CONTEXT(context);
    if (array == NULL || descriptor == NULL || !is_valid(descriptor)) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    return make(context, descriptor, array);
}

SIM_EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *flat) {
    if (flat == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {.Width = flat->Width,
                                          .Height = flat->Height,
                                          .Format = flat->Format,
                                          .NumChannels = flat->NumChannels};
    return cuArray3DCreate_v2(array, &descriptor);
}

SIM_EXPORT CUresult cuArrayDestroy(CUarray array) {
    SIM_ENTER_CONTEXT(context);
    if (!sim_is_array(array) || array->mipmap != NULL) return CUDA_ERROR_INVALID_HANDLE;
    sim_context_wait(context);
    SIM_LOCKED();
    end(array);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUarray array) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    if (descriptor == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_array(array)) return CUDA_ERROR_INVALID_HANDLE;
    *descriptor = array->descriptor;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *flat, CUarray array) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    if (flat == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(cuArray3DGetDescriptor_v2(&descriptor, array));
    *flat = (CUDA_ARRAY_DESCRIPTOR){descriptor.Width, descriptor.Height, descriptor.Format,
                                    descriptor.NumChannels};
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, CUarray array,
                                                 CUdevice device) {
    SIM_ENTER();
    if (requirements == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_array(array)) return CUDA_ERROR_INVALID_HANDLE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *requirements = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = array->backed_bytes, .alignment = UNIT_BYTES};
    return CUDA_SUCCESS;
}

static size_t halved(size_t value, unsigned level) {
    return value == 0 ? 0 : at_least_one(value >> level);
}

static CUresult add_levels(CUmipmappedArray mipmap, const CUDA_ARRAY3D_DESCRIPTOR *whole, unsigned count) {
    while (mipmap->level_count < count) {
        CUDA_ARRAY3D_DESCRIPTOR descriptor = *whole;
        unsigned level = mipmap->level_count;
        descriptor.Width = halved(whole->Width, level);
        descriptor.Height = halved(whole->Height, level);
        descriptor.Depth = halved(whole->Depth, level);
        SIM_TRY(make(mipmap->context, &descriptor, &mipmap->level[level]));
        mipmap->level[level]->mipmap = mipmap;
        mipmap->level_count++;
    }
    return CUDA_SUCCESS;
}

static void end_mipmap(CUmipmappedArray mipmap) {
    for (unsigned level = 0; level < mipmap->level_count; level++)
        end(mipmap->level[level]);
    sim_delete(&mipmaps, mipmap);
}

static unsigned most_levels(const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    size_t largest = descriptor->Width;
    if (descriptor->Height > largest) largest = descriptor->Height;
    if (descriptor->Depth > largest) largest = descriptor->Depth;
    return 64u - (unsigned)__builtin_clzll(largest);
}

SIM_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *made, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                           unsigned int level_count) {
    SIM_ENTER_CONTEXT(context);
    if (made == NULL || descriptor == NULL || !is_valid(descriptor) || level_count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (level_count > most_levels(descriptor)) level_count = most_levels(descriptor);
    SIM_LOCKED();
    CUmipmappedArray mipmap = sim_new(&mipmaps);
    if (mipmap == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    mipmap->context = context;
    CUresult result = add_levels(mipmap, descriptor, level_count);
    if (result == CUDA_SUCCESS)
        *made = mipmap;
    else
        end_mipmap(mipmap);
    return result;
}

bool sim_is_mipmap(CUmipmappedArray mipmap) {
    return mipmap != NULL && sim_is_live(&mipmaps, mipmap);
}

SIM_EXPORT CUresult cuMipmappedArrayGetLevel(CUarray *array, CUmipmappedArray mipmap, unsigned int level) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    if (array == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_mipmap(mipmap)) return CUDA_ERROR_INVALID_HANDLE;
    if (level >= mipmap->level_count) return CUDA_ERROR_INVALID_VALUE;
    *array = mipmap->level[level];
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap) {
    SIM_ENTER_CONTEXT(context);
    if (!sim_is_mipmap(mipmap)) return CUDA_ERROR_INVALID_HANDLE;
    sim_context_wait(context);
    SIM_LOCKED();
    end_mipmap(mipmap);
    return CUDA_SUCCESS;
}

void sim_arrays_delete_of(CUcontext context) {
    for (uint32_t i = 0; i < mipmaps.used; i++) {
        CUmipmappedArray mipmap = sim_at(&mipmaps, i);
        if (mipmap != NULL && mipmap->context == context) end_mipmap(mipmap);
    }
    for (uint32_t i = 0; i < sim_arrays.used; i++) {
        CUarray array = sim_at(&sim_arrays, i);
        if (array != NULL && array->context == context) end(array);
    }
}

void sim_arrays_move(CUcontext from, CUcontext to) {
    for (uint32_t i = 0; i < mipmaps.used; i++) {
        CUmipmappedArray mipmap = sim_at(&mipmaps, i);
        if (mipmap != NULL && mipmap->context == from) mipmap->context = to;
    }
    for (uint32_t i = 0; i < sim_arrays.used; i++) {
        CUarray array = sim_at(&sim_arrays, i);
        if (array != NULL && array->context == from) array->context = to;
    }
}
