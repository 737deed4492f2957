/* Tensor maps: descriptions of arrays for the copy engine of compute capability 9. Encoding one touches no
 * device; the bits are ours, since no kernel reads them here, but what is refused is what NVIDIA documents.
 */
#include <string.h>

#include "driver/driver.h"

#define MOST_DIMENSIONS 5u

/* What lies in a map. */
struct encoded {
    uint64_t magic, address;
    uint32_t type, rank;
    uint32_t interleave, swizzle, promotion, fill;
    uint64_t dimensions[MOST_DIMENSIONS];
    uint32_t box[MOST_DIMENSIONS];
};

_Static_assert(sizeof(struct encoded) <= sizeof(CUtensorMap), "fits a map");

#define MAGIC 0x50414d4d49534e54ull

static unsigned element_bytes(CUtensorMapDataType type) {
    switch ((int)type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
        return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
        return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
        return 8;
    default:
        return 4;
    }
}

static bool is_packed(CUtensorMapDataType type) {
    return type >= CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B;
}

static bool is_float(CUtensorMapDataType type) {
    return type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type <= CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ;
}

static CUresult check_support(unsigned least_major) {
    for (CUdevice device = 0; device < sim_driver.device_count; device++)
        if (sim_gpu_of(device)->compute_major >= least_major) return CUDA_SUCCESS;
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* What every kind of map has. */
struct tensor {
    CUtensorMapDataType type;
    uint32_t rank;
    uintptr_t address;
    const cuuint64_t *dimensions, *strides;
    const cuuint32_t *steps;
    CUtensorMapInterleave interleave;
    CUtensorMapSwizzle swizzle;
    CUtensorMapL2promotion promotion;
    CUtensorMapFloatOOBfill fill;
};

static bool has_known_modes(const struct tensor *tensor) {
    return (unsigned)tensor->type <= CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B &&
           (unsigned)tensor->interleave <= CU_TENSOR_MAP_INTERLEAVE_32B &&
           (unsigned)tensor->swizzle <= CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B &&
           (unsigned)tensor->promotion <= CU_TENSOR_MAP_L2_PROMOTION_L2_256B &&
           (unsigned)tensor->fill <= CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
}

static unsigned alignment_of(const struct tensor *tensor) {
    bool is_wide = tensor->type >= CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B;
    return is_wide || tensor->interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16;
}

static bool has_good_shape(const struct tensor *tensor) {
    for (uint32_t i = 0; i < tensor->rank; i++) {
        if (tensor->dimensions[i] == 0 || tensor->dimensions[i] > 1ull << 32) return false;
        bool is_ignored = i == 0 && tensor->interleave == CU_TENSOR_MAP_INTERLEAVE_NONE;
        if (!is_ignored && (tensor->steps[i] == 0 || tensor->steps[i] > 8)) return false;
        if (i + 1 == tensor->rank) break;
        if (tensor->strides[i] % alignment_of(tensor) != 0 || tensor->strides[i] >= 1ull << 40) return false;
    }
    return true;
}

static bool has_good_modes(const struct tensor *tensor) {
    if (tensor->interleave == CU_TENSOR_MAP_INTERLEAVE_32B && tensor->swizzle != CU_TENSOR_MAP_SWIZZLE_32B)
        return false;
    if (tensor->fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE && !is_float(tensor->type)) return false;
    bool is_dense = tensor->interleave == CU_TENSOR_MAP_INTERLEAVE_NONE;
    return is_dense || tensor->type != CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B;
}

static CUresult check(const CUtensorMap *map, const struct tensor *tensor, uint32_t least_rank) {
    if (map == NULL || (uintptr_t)map % 64 != 0 || !has_known_modes(tensor)) return CUDA_ERROR_INVALID_VALUE;
    bool is_interleaved = tensor->interleave != CU_TENSOR_MAP_INTERLEAVE_NONE;
    if (is_interleaved && least_rank < 3) least_rank = 3;
    if (tensor->rank < least_rank || tensor->rank > MOST_DIMENSIONS) return CUDA_ERROR_INVALID_VALUE;
    if (tensor->address == 0 || tensor->address % alignment_of(tensor) != 0) return CUDA_ERROR_INVALID_VALUE;
    bool has_strides = tensor->rank == 1 || tensor->strides != NULL;
    if (tensor->dimensions == NULL || tensor->steps == NULL || !has_strides) return CUDA_ERROR_INVALID_VALUE;
    return has_good_shape(tensor) && has_good_modes(tensor) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static unsigned swizzle_bytes(CUtensorMapSwizzle swizzle) {
    if (swizzle == CU_TENSOR_MAP_SWIZZLE_32B) return 32;
    return swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64 : 128;
}

/* Bytes of a box's inner row, as it lies in shared memory. */
static bool is_good_row(const struct tensor *tensor, uint32_t elements) {
    if (is_packed(tensor->type) || tensor->interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) return true;
    uint64_t bytes = (uint64_t)elements * element_bytes(tensor->type);
    if (bytes % 16 != 0) return false;
    return tensor->swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || bytes <= swizzle_bytes(tensor->swizzle);
}

static CUresult check_box(const struct tensor *tensor, const cuuint32_t *box) {
    if (box == NULL) return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < tensor->rank; i++)
        if (box[i] == 0 || box[i] > 256) return CUDA_ERROR_INVALID_VALUE;
    return is_good_row(tensor, box[0]) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void write(CUtensorMap *map, const struct tensor *tensor, const cuuint32_t *box) {
    struct encoded encoded = {.magic = MAGIC,
                              .address = tensor->address,
                              .type = tensor->type,
                              .rank = tensor->rank,
                              .interleave = tensor->interleave,
                              .swizzle = tensor->swizzle,
                              .promotion = tensor->promotion,
                              .fill = tensor->fill};
    memcpy(encoded.dimensions, tensor->dimensions, tensor->rank * sizeof(*tensor->dimensions));
    if (box != NULL) memcpy(encoded.box, box, tensor->rank * sizeof(*box));
    memset(map, 0, sizeof(*map));
    memcpy(map->opaque, &encoded, sizeof(encoded));
}

SIM_EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                           void *address, const cuuint64_t *dimensions,
                                           const cuuint64_t *strides, const cuuint32_t *box,
                                           const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                           CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                           CUtensorMapFloatOOBfill fill) {
    SIM_ENTER();
    const struct tensor tensor = {type,       rank,    (uintptr_t)address, dimensions, strides, steps,
                                  interleave, swizzle, promotion,          fill};
    SIM_TRY(check_support(9));
    SIM_TRY(check(map, &tensor, 1));
    SIM_TRY(check_box(&tensor, box));
    write(map, &tensor, box);
    return CUDA_SUCCESS;
}

static CUresult check_pixels(const struct tensor *tensor, cuuint32_t channels, cuuint32_t pixels) {
    if (channels == 0 || channels > 256 || pixels == 0 || pixels > 1024) return CUDA_ERROR_INVALID_VALUE;
    return is_good_row(tensor, channels) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                            void *address, const cuuint64_t *dimensions,
                                            const cuuint64_t *strides, const int *lower, const int *upper,
                                            cuuint32_t channels, cuuint32_t pixels, const cuuint32_t *steps,
                                            CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                            CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    SIM_ENTER();
    const struct tensor tensor = {type,       rank,    (uintptr_t)address, dimensions, strides, steps,
                                  interleave, swizzle, promotion,          fill};
    SIM_TRY(check_support(9));
    SIM_TRY(check(map, &tensor, 3));
    if (lower == NULL || upper == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check_pixels(&tensor, channels, pixels));
    write(map, &tensor, NULL);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuTensorMapEncodeIm2colWide(
    CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *dimensions,
    const cuuint64_t *strides, int lower_width, int upper_width, cuuint32_t channels, cuuint32_t pixels,
    const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode,
    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    SIM_ENTER();
    (void)lower_width, (void)upper_width;
    const struct tensor tensor = {type,       rank,    (uintptr_t)address, dimensions, strides, steps,
                                  interleave, swizzle, promotion,          fill};
    SIM_TRY(check_support(10));
    if ((unsigned)mode > CU_TENSOR_MAP_IM2COL_WIDE_MODE_W128) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(map, &tensor, 3));
    SIM_TRY(check_pixels(&tensor, channels, pixels));
    write(map, &tensor, NULL);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuTensorMapReplaceAddress(CUtensorMap *map, void *address) {
    SIM_ENTER();
    struct encoded encoded;
    SIM_TRY(check_support(9));
    if (map == NULL || (uintptr_t)map % 64 != 0 || address == NULL) return CUDA_ERROR_INVALID_VALUE;
    memcpy(&encoded, map->opaque, sizeof(encoded));
    if (encoded.magic != MAGIC) return CUDA_ERROR_INVALID_VALUE;
    unsigned alignment = encoded.interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16;
    if ((uintptr_t)address % alignment != 0) return CUDA_ERROR_INVALID_VALUE;
    encoded.address = (uintptr_t)address;
    memcpy(map->opaque, &encoded, sizeof(encoded));
    return CUDA_SUCCESS;
}
