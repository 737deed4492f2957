/* Arrays and mipmapped arrays. The driver does not report their size, so it is computed from their shape. */
#include "slice/charge.h"
#include "first_api.h"
#include "functions.h"
#include "slice/holdings.h"
#include "slice/slice.h"

/* Flags of cuda.h. */
#define CUDA_ARRAY3D_LAYERED          0x01u
#define CUDA_ARRAY3D_CUBEMAP          0x04u
#define CUDA_ARRAY3D_SPARSE           0x40u
#define CUDA_ARRAY3D_DEFERRED_MAPPING 0x80u

/* Backed by memory of cuMemCreate later, which is charged there. */
#define WITHOUT_MEMORY (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)

static uint64_t at_least_one(uint64_t extent) {
    return extent == 0 ? 1 : extent;
}

/* Bits of one texel. Block-compressed formats store 8 or 16 bytes for 4 x 4 texels; of video formats the
 * largest size. */
static uint64_t texel_bits(CUarray_format format, unsigned int channels) {
    switch ((int)format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 8ull * channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 16ull * channels;
    case CU_AD_FORMAT_UNORM_INT8X1:
    case CU_AD_FORMAT_SNORM_INT8X1:
        return 8;
    case CU_AD_FORMAT_UNORM_INT8X2:
    case CU_AD_FORMAT_SNORM_INT8X2:
    case CU_AD_FORMAT_UNORM_INT16X1:
    case CU_AD_FORMAT_SNORM_INT16X1:
        return 16;
    case CU_AD_FORMAT_UNORM_INT16X4:
    case CU_AD_FORMAT_SNORM_INT16X4:
        return 64;
    case CU_AD_FORMAT_BC1_UNORM:
    case CU_AD_FORMAT_BC1_UNORM_SRGB:
    case CU_AD_FORMAT_BC4_UNORM:
    case CU_AD_FORMAT_BC4_SNORM:
        return 4;
    case CU_AD_FORMAT_BC2_UNORM:
    case CU_AD_FORMAT_BC2_UNORM_SRGB:
    case CU_AD_FORMAT_BC3_UNORM:
    case CU_AD_FORMAT_BC3_UNORM_SRGB:
    case CU_AD_FORMAT_BC5_UNORM:
    case CU_AD_FORMAT_BC5_SNORM:
    case CU_AD_FORMAT_BC6H_UF16:
    case CU_AD_FORMAT_BC6H_SF16:
    case CU_AD_FORMAT_BC7_UNORM:
    case CU_AD_FORMAT_BC7_UNORM_SRGB:
        return 8;
    default:
        return 32ull * at_least_one(channels);
    }
}

/* Saturates: an overflowing size is refused by any limit, or by the driver. */
static uint64_t times(uint64_t left, uint64_t right) {
    uint64_t product;
    return __builtin_mul_overflow(left, right, &product) ? (uint64_t)INT64_MAX : product;
}

static uint64_t shape_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape) {
    if (shape == NULL || (shape->Flags & WITHOUT_MEMORY) != 0) return 0;
    uint64_t texels =
        times(times(at_least_one(shape->Width), at_least_one(shape->Height)), at_least_one(shape->Depth));
    uint64_t bits = texel_bits(shape->Format, shape->NumChannels);
    return times(texels, bits) / 8 + (bits % 8 != 0);
}

/* Each level halves width and height, and the depth too unless it is layered or a cube. */
static void halve(CUDA_ARRAY3D_DESCRIPTOR *level) {
    level->Width = at_least_one(level->Width / 2);
    level->Height /= level->Height > 1 ? 2 : 1;
    if ((level->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) == 0)
        level->Depth /= level->Depth > 1 ? 2 : 1;
}

static uint64_t mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels) {
    if (shape == NULL) return 0;
    CUDA_ARRAY3D_DESCRIPTOR level = *shape;
    uint64_t bytes = 0;
    for (unsigned int number = 0; number < levels && number < 64; number++, halve(&level)) {
        uint64_t level_bytes = shape_bytes(&level);
        bytes = bytes > (uint64_t)INT64_MAX - level_bytes ? (uint64_t)INT64_MAX : bytes + level_bytes;
    }
    return bytes;
}

static CUDA_ARRAY3D_DESCRIPTOR flat(uint64_t width, uint64_t height, CUarray_format format,
                                    unsigned int channels) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {
        .Width = width, .Height = height, .Format = format, .NumChannels = channels};
    return shape;
}

static CUresult begin(struct pgpu_charge *charge, struct pgpu_place *place, uint64_t bytes) {
    CUresult result = pgpu_slice_current(place);
    return result == CUDA_SUCCESS ? pgpu_charge_begin(charge, place->gpu, pgpu_slice_granule(bytes)) : result;
}

static void note(const struct pgpu_charge *charge, const struct pgpu_place *place, const void *array) {
    struct pgpu_holding row = {.key = (uint64_t)array,
                               .bytes = charge->bytes,
                               .context = (uint64_t)place->context,
                               .count = 1,
                               .kind = PGPU_KIND_ARRAY,
                               .gpu = (int8_t)place->gpu};
    pgpu_holdings_put(&row);
}

#define CREATE(array, shape_in_bytes, call)                                                                  \
    struct pgpu_charge charge;                                                                               \
    struct pgpu_place place;                                                                                 \
    CUresult result = begin(&charge, &place, shape_in_bytes);                                                \
    if (result != CUDA_SUCCESS) return result;                                                               \
    do                                                                                                       \
        result = call;                                                                                       \
    while (pgpu_charge_should_retry(&charge, result));                                                       \
    if (result == CUDA_SUCCESS) note(&charge, &place, *(array));                                             \
    return result

PGPU_EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *wanted) {
    if (wanted == NULL) return PGPU_REAL(cuArrayCreate_v2)(array, wanted);
    CUDA_ARRAY3D_DESCRIPTOR shape = flat(wanted->Width, wanted->Height, wanted->Format, wanted->NumChannels);
    CREATE(array, shape_bytes(&shape), PGPU_REAL(cuArrayCreate_v2)(array, wanted));
}

PGPU_EXPORT CUresult cuArrayCreate(CUarray *array, const struct pgpu_array_v1 *wanted) {
    if (wanted == NULL) return PGPU_REAL(cuArrayCreate)(array, wanted);
    CUDA_ARRAY3D_DESCRIPTOR shape = flat(wanted->width, wanted->height, wanted->format, wanted->channels);
    CREATE(array, shape_bytes(&shape), PGPU_REAL(cuArrayCreate)(array, wanted));
}

PGPU_EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape) {
    CREATE(array, shape_bytes(shape), PGPU_REAL(cuArray3DCreate_v2)(array, shape));
}

PGPU_EXPORT CUresult cuArray3DCreate(CUarray *array, const struct pgpu_array_3d_v1 *wanted) {
    if (wanted == NULL) return PGPU_REAL(cuArray3DCreate)(array, wanted);
    CUDA_ARRAY3D_DESCRIPTOR shape = flat(wanted->width, wanted->height, wanted->format, wanted->channels);
    shape.Depth = wanted->depth;
    shape.Flags = wanted->flags;
    CREATE(array, shape_bytes(&shape), PGPU_REAL(cuArray3DCreate)(array, wanted));
}

PGPU_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape,
                                            unsigned int levels) {
    CREATE(array, mipmap_bytes(shape, levels), PGPU_REAL(cuMipmappedArrayCreate)(array, shape, levels));
}

static CUresult finish_destroy(bool is_known, const struct pgpu_holding *row, CUresult result) {
    if (is_known && result == CUDA_SUCCESS) pgpu_charge_refund(row->gpu, row->bytes);
    if (is_known && result != CUDA_SUCCESS) pgpu_holdings_put(row);
    return result;
}

PGPU_EXPORT CUresult cuArrayDestroy(CUarray array) {
    struct pgpu_holding row;
    bool is_known = pgpu_holdings_take(PGPU_KIND_ARRAY, (uint64_t)array, &row);
    return finish_destroy(is_known, &row, PGPU_REAL(cuArrayDestroy)(array));
}

PGPU_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    struct pgpu_holding row;
    bool is_known = pgpu_holdings_take(PGPU_KIND_ARRAY, (uint64_t)array, &row);
    return finish_destroy(is_known, &row, PGPU_REAL(cuMipmappedArrayDestroy)(array));
}
