/* What a call that may load code or variables took of the device, and the charge for it.
 *
 * NVML's figure for this process decides. It is read only if the device's free memory is not what it was at
 * the last measurement, less what the job has charged since; else nothing was taken. (Neighbours that
 * released as much meanwhile hide it, until the next measurement or the host's.)
 *
 * Where NVML has no such figure, or charged memory need not be on the device (managed and shared memory),
 * only a difference is known, which others may have caused as well. It is believed if several loads in a row
 * show it. */
#ifndef PGPU_SHIM_LOADING_H
#define PGPU_SHIM_LOADING_H

#include <stdbool.h>
#include <stdint.h>

#include "slice/slice.h"

/* Before the call. */
struct pgpu_loading {
    struct pgpu_place place; /* without a GPU: nothing can be measured */
    uint64_t free_bytes, slice_bytes;
    uint64_t process_bytes, own_bytes; /* only if has_process_bytes */
    bool has_process_bytes;            /* charged memory need not be on the device */
};
struct pgpu_loading pgpu_loading_begin(void);

/* After it. */
struct pgpu_loaded {
    uint64_t bytes;       /* that the driver took for this process, and for which nothing was charged */
    uint64_t since_begin; /* that the device, or the process, has less than before the call */
    bool is_proven;       /* no other process took `bytes` */
};
struct pgpu_loaded pgpu_loading_end(const struct pgpu_loading *before);

/* Whether memory of an earlier call did not fit, was counted past the slice, and there is still no room: the
 * driver is not to load more. */
bool pgpu_loading_is_barred(const struct pgpu_place *place);

/* Charge memory that is not going to be released again, past the slice if need be: then
 * CUDA_ERROR_OUT_OF_MEMORY. `handle`: the module or library that it goes with, or 0. */
CUresult pgpu_loading_charge(const struct pgpu_loading *before, uint64_t handle, uint64_t bytes);

/* A row for what was charged. `is_use`: for what came after the load, of which there may be more. */
void pgpu_loading_note(const struct pgpu_loading *before, uint64_t handle, uint64_t bytes, bool is_use);

#endif
