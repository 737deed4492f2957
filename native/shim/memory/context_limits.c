/* Memory that a context takes for a limit: the device's malloc heap, the printf buffer, every thread's stack.
 *
 * A context's initial limits are part of its own bytes. Beyond that, each limit is charged before it is
 * raised, and never less than its highest value so far: the driver need not release anything before the
 * context ends. */
#include "slice/charge.h"
#include "functions.h"
#include "slice/holdings.h"
#include "slice/slice.h"

/* Contexts leave the upper byte of their handles free. */
static uint64_t key_of(CUcontext context, CUlimit limit) {
    return (uint64_t)context ^ ((uint64_t)limit + 1) << 56;
}

static uint64_t attribute(CUdevice ordinal, CUdevice_attribute wanted) {
    int value = 0;
    CUresult result = PGPU_REAL(cuDeviceGetAttribute)(&value, wanted, ordinal);
    return result == CUDA_SUCCESS && value > 0 ? (uint64_t)value : 0;
}

/* The other limits take no memory, or no size in bytes is documented for them. */
static uint64_t units_of(CUlimit limit, CUdevice ordinal) {
    if (limit == CU_LIMIT_MALLOC_HEAP_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE) return 1;
    if (limit != CU_LIMIT_STACK_SIZE) return 0;
    return attribute(ordinal, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) *
           attribute(ordinal, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
}

/* Saturates: what overflows is refused by any limit. */
static uint64_t times(uint64_t left, uint64_t right) {
    uint64_t product;
    return __builtin_mul_overflow(left, right, &product) ? (uint64_t)INT64_MAX : product;
}

/* The limit's row; made with the context's initial value. */
static CUresult find_row(const struct pgpu_place *place, CUlimit limit, struct pgpu_holding *row) {
    uint64_t key = key_of(place->context, limit);
    if (pgpu_holdings_find(PGPU_KIND_LIMIT, key, row)) return CUDA_SUCCESS;
    size_t value;
    CUresult result = PGPU_REAL(cuCtxGetLimit)(&value, limit);
    if (result != CUDA_SUCCESS) return result;
    *row = (struct pgpu_holding){.key = key,
                                 .context = (uint64_t)place->context,
                                 .value = value,
                                 .count = 1,
                                 .kind = PGPU_KIND_LIMIT,
                                 .gpu = (int8_t)place->gpu};
    return pgpu_holdings_put(row) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

struct raise {
    uint64_t value, bytes;
};

static void raise_to(struct pgpu_holding *row, void *context) {
    const struct raise *raise = context;
    row->bytes += raise->bytes;
    if (raise->value > row->value) row->value = raise->value;
}

static CUresult set_charged(const struct pgpu_place *place, CUlimit limit, size_t value, uint64_t units) {
    struct pgpu_charge charge;
    struct pgpu_holding row;
    CUresult result = find_row(place, limit, &row);
    if (result != CUDA_SUCCESS || value <= row.value) return PGPU_REAL(cuCtxSetLimit)(limit, value);
    result = pgpu_charge_begin(&charge, place->gpu, pgpu_slice_granule(times(value - row.value, units)));
    if (result != CUDA_SUCCESS) return result;
    do
        result = PGPU_REAL(cuCtxSetLimit)(limit, value);
    while (pgpu_charge_should_retry(&charge, result));
    struct raise raise = {.value = value, .bytes = charge.bytes};
    if (result == CUDA_SUCCESS) pgpu_holdings_edit(PGPU_KIND_LIMIT, row.key, raise_to, &raise);
    return result;
}

PGPU_EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    struct pgpu_place place;
    CUresult result = pgpu_slice_current(&place);
    uint64_t units = result == CUDA_SUCCESS ? units_of(limit, place.ordinal) : 0;
    if (units == 0 || place.gpu == PGPU_NO_GPU) return PGPU_REAL(cuCtxSetLimit)(limit, value);
    return set_charged(&place, limit, value, units);
}
