/* Ordinary memory that was freed on a stream: it stays counted until the stream has got there.
 *
 * An event recorded behind the free tells; nobody ever waits for it. Where there can be no event the bytes
 * stay counted until the stream's context goes. */
#ifndef PGPU_SHIM_DEFERRED_FREES_H
#define PGPU_SHIM_DEFERRED_FREES_H

#include <stdbool.h>

#include "cuda_abi.h"
#include "slice/holdings.h"

/* The driver took `memory`'s free into `stream`. */
void pgpu_deferred_frees_begin(const struct pgpu_holding *memory, CUstream stream, bool is_per_thread);

/* Refund what streams have got to; true if there was any. */
bool pgpu_deferred_frees_settle(void);

/* Around the end of a context: from here on nobody asks about its events, which go with it. */
void pgpu_deferred_frees_pause(uint64_t context);

/* The context is still there. */
void pgpu_deferred_frees_resume(uint64_t context);

#endif
