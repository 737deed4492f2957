/* Ordinary memory: linear, pitched and managed allocations, and every way of freeing them. */
#include "slice/charge.h"
#include "functions.h"
#include "slice/holdings.h"
#include "memory/paging.h"
#include "memory/pools.h"
#include "slice/slice.h"

static struct pgpu_holding row_of(const struct pgpu_charge *charge, const struct pgpu_place *place,
                                  CUdeviceptr pointer) {
    return (struct pgpu_holding){.key = pointer,
                                 .bytes = charge->bytes,
                                 .context = (uint64_t)place->context,
                                 .count = 1,
                                 .kind = PGPU_KIND_MEMORY,
                                 .gpu = (int8_t)charge->gpu};
}

static void note(const struct pgpu_charge *charge, const struct pgpu_place *place, CUdeviceptr pointer,
                 bool is_converted) {
    struct pgpu_holding row = row_of(charge, place, pointer);
    row.is_converted = is_converted;
    pgpu_holdings_put(&row);
}

static void note_managed(const struct pgpu_charge *charge, const struct pgpu_place *place,
                         CUdeviceptr pointer) {
    struct pgpu_holding row = row_of(charge, place, pointer);
    row.is_managed = true;
    pgpu_holdings_put(&row);
}

/* Where to count, and room for `bytes` there. */
static CUresult begin(struct pgpu_charge *charge, struct pgpu_place *place, uint64_t bytes,
                      bool is_pageable) {
    CUresult result = pgpu_slice_current(place);
    int gpu = is_pageable && place->gpu != PGPU_NO_GPU ? PGPU_AS_PAGEABLE(place->gpu) : place->gpu;
    return result == CUDA_SUCCESS ? pgpu_charge_begin(charge, gpu, pgpu_slice_granule(bytes)) : result;
}

PGPU_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    struct pgpu_charge charge;
    struct pgpu_place place;
    bool is_converted = pgpu_paging_is_on();
    CUresult result = begin(&charge, &place, bytes, is_converted);
    if (result != CUDA_SUCCESS) return result;
    do
        result = is_converted ? pgpu_paging_allocate(pointer, bytes, place.ordinal)
                              : PGPU_REAL(cuMemAlloc_v2)(pointer, bytes);
    while (pgpu_charge_should_retry(&charge, result));
    if (result == CUDA_SUCCESS) note(&charge, &place, *pointer, is_converted);
    return result;
}

/* A pointer of 32 bits cannot be managed memory's. */
PGPU_EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int bytes) {
    struct pgpu_charge charge;
    struct pgpu_place place;
    CUresult result = begin(&charge, &place, bytes, false);
    if (result != CUDA_SUCCESS) return result;
    do
        result = PGPU_REAL(cuMemAlloc)(pointer, bytes);
    while (pgpu_charge_should_retry(&charge, result));
    if (result == CUDA_SUCCESS) note(&charge, &place, *pointer, false);
    return result;
}

PGPU_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags) {
    struct pgpu_charge charge;
    struct pgpu_place place;
    CUresult result = begin(&charge, &place, bytes, pgpu_paging_is_on());
    if (result != CUDA_SUCCESS) return result;
    pgpu_slice_forbid_checkpoint();
    do
        result = PGPU_REAL(cuMemAllocManaged)(pointer, bytes, flags);
    while (pgpu_charge_should_retry(&charge, result));
    if (result == CUDA_SUCCESS) note_managed(&charge, &place, *pointer);
    return result;
}

/* Pitches are multiples of 512 B on every GPU so far; the pitch that the driver returns is charged in the
 * end. */
static uint64_t pitched_bytes(uint64_t width_bytes, uint64_t height) {
    uint64_t pitch_bytes = width_bytes > UINT64_MAX - 511 ? width_bytes : (width_bytes + 511) & ~511ull;
    uint64_t bytes;
    return __builtin_mul_overflow(pitch_bytes, height, &bytes) ? UINT64_MAX : bytes;
}

/* A driver with a larger pitch allocated more than was charged: charge the rest, or free the memory. */
static CUresult settle_pitch(struct pgpu_charge *charge, const struct pgpu_place *place, CUdeviceptr pointer,
                             uint64_t actual_bytes) {
    uint64_t wanted_bytes = pgpu_slice_granule(actual_bytes);
    CUresult result = CUDA_SUCCESS;
    if (wanted_bytes > charge->bytes) result = pgpu_charge_more(charge, wanted_bytes - charge->bytes);
    if (result == CUDA_SUCCESS) {
        note(charge, place, pointer, charge->gpu != place->gpu);
        return result;
    }
    PGPU_REAL(cuMemFree_v2)(pointer);
    pgpu_charge_refund(charge->gpu, charge->bytes);
    return result;
}

PGPU_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch_bytes, size_t width_bytes,
                                        size_t height, unsigned int element_bytes) {
    struct pgpu_charge charge;
    struct pgpu_place place;
    bool is_converted = pgpu_paging_is_on();
    CUresult result = begin(&charge, &place, pitched_bytes(width_bytes, height), is_converted);
    if (result != CUDA_SUCCESS) return result;
    do
        result = is_converted ? pgpu_paging_allocate_pitch(pointer, pitch_bytes, width_bytes, height,
                                                           element_bytes, place.ordinal)
                              : PGPU_REAL(cuMemAllocPitch_v2)(pointer, pitch_bytes, width_bytes, height,
                                                              element_bytes);
    while (pgpu_charge_should_retry(&charge, result));
    if (result != CUDA_SUCCESS) return result;
    return settle_pitch(&charge, &place, *pointer, (uint64_t)*pitch_bytes * height);
}

PGPU_EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch_bytes,
                                     unsigned int width_bytes, unsigned int height,
                                     unsigned int element_bytes) {
    struct pgpu_charge charge;
    struct pgpu_place place;
    CUresult result = begin(&charge, &place, pitched_bytes(width_bytes, height), false);
    if (result != CUDA_SUCCESS) return result;
    do
        result = PGPU_REAL(cuMemAllocPitch)(pointer, pitch_bytes, width_bytes, height, element_bytes);
    while (pgpu_charge_should_retry(&charge, result));
    if (result != CUDA_SUCCESS) return result;
    return settle_pitch(&charge, &place, *pointer, (uint64_t)*pitch_bytes * height);
}

/* The row is removed before the driver may give the address to another thread, and is restored if the driver
 * refuses. The refund comes last, so that no other process uses room that is not free yet. */
static void finish_free(bool is_known, const struct pgpu_holding *row, CUresult result) {
    if (!is_known) return;
    if (result != CUDA_SUCCESS)
        pgpu_holdings_put(row);
    else if (row->pool != 0)
        pgpu_pools_freed(row);
    else
        pgpu_charge_refund(row->gpu, row->bytes);
}

PGPU_EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
    struct pgpu_holding row;
    bool is_known = pgpu_holdings_take(PGPU_KIND_MEMORY, pointer, &row);
    CUresult result = PGPU_REAL(cuMemFree_v2)(pointer);
    finish_free(is_known, &row, result);
    return result;
}

PGPU_EXPORT CUresult cuMemFree(CUdeviceptr_v1 pointer) {
    struct pgpu_holding row;
    bool is_known = pgpu_holdings_take(PGPU_KIND_MEMORY, pointer, &row);
    CUresult result = PGPU_REAL(cuMemFree)(pointer);
    finish_free(is_known, &row, result);
    return result;
}
