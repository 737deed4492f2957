/* Ordinary memory that was freed on a stream stays charged until the stream has reached the free.
 *
 * An event is recorded behind the free and is queried, never waited for. Where no event can be recorded the
 * bytes stay charged until the stream's context ends. */
#ifndef PGPU_SHIM_DEFERRED_FREES_H
#define PGPU_SHIM_DEFERRED_FREES_H

#include <stdbool.h>

#include "cuda_abi.h"
#include "slice/holdings.h"

/* The driver accepted the free of `memory` in `stream`. */
void pgpu_deferred_frees_begin(const struct pgpu_holding *memory, CUstream stream, bool is_per_thread);

/* Refund memory whose free the streams have reached; true if there was any. */
bool pgpu_deferred_frees_settle(void);

/* Around the end of a context: from pause to resume no thread queries its events, which the driver destroys
 * with it. */
void pgpu_deferred_frees_pause(uint64_t context);

/* The context did not end. */
void pgpu_deferred_frees_resume(uint64_t context);

#endif
