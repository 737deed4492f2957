/* Reserve, allocate, commit: bytes are charged before the driver is called and refunded if it refuses.
 *
 *     struct pgpu_charge charge;
 *     CUresult result = pgpu_charge_begin(&charge, gpu, bytes);
 *     if (result != CUDA_SUCCESS) return result;
 *     do result = PGPU_REAL(cuMemAlloc_v2)(pointer, bytes);
 *     while (pgpu_charge_should_retry(&charge, result));
 *
 * After the loop a refused charge is refunded already; the caller adds a row for a granted one. */
#ifndef PGPU_SHIM_CHARGE_H
#define PGPU_SHIM_CHARGE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

/* What is counted as memory that the driver may move to the host, where the job oversubscribes. It stands in
 * the place of a GPU's index in charges and in the rows of what they were for. */
#define PGPU_AS_PAGEABLE(gpu) ((gpu) + (int)PGPU_MAX_PAGED_GPUS)

struct pgpu_charge {
    int gpu; /* PGPU_NO_GPU, an index in the limit file, or one PGPU_AS_PAGEABLE */
    uint64_t bytes;
    uint64_t deadline_ns; /* 0: the driver has not refused yet */
};

/* CUDA_ERROR_OUT_OF_MEMORY if the slice, or the part of it that must stay on the device, has no room and does
 * not get any (growth.h), for which the thread may wait for minutes; CUDA_ERROR_NOT_PERMITTED for a GPU
 * outside the lease. No lock of the shim may be held. */
CUresult pgpu_charge_begin(struct pgpu_charge *charge, int gpu, uint64_t bytes);

/* True: the wait is over and the driver is to be called again. False: `result` is final. */
bool pgpu_charge_should_retry(struct pgpu_charge *charge, CUresult result);

/* Count `bytes` more after the fact, where the driver took more than was foreseen; never waits for room. */
CUresult pgpu_charge_more(struct pgpu_charge *charge, uint64_t bytes);

/* Count `bytes` that the driver has taken already, past the slice if need be: later charges are refused. */
void pgpu_charge_regardless(int gpu, uint64_t bytes);

void pgpu_charge_refund(int gpu, uint64_t bytes);

#endif
