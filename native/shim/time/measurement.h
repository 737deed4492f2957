/* Reading closed batches: measured GPU time is charged, and estimates are updated. */
#ifndef PGPU_SHIM_MEASUREMENT_H
#define PGPU_SHIM_MEASUREMENT_H

#include <stdint.h>

#include "cuda_abi.h"

struct pgpu_batch;

/* Read the batches with completed events. Returns at once where another thread is reading. Cancellation is
 * deferred by the caller. */
void pgpu_measurement_settle(int gpu, uint64_t now_ns);

/* The end of a batch cannot be measured: charge the whole time since it began, except time already charged
 * for another such batch, and at least `least_ns`. The estimate was charged before. */
void pgpu_measurement_give_up(const struct pgpu_batch *batch, uint64_t now_ns, uint64_t least_ns);

/* Wait until no thread reads, and let none begin, until the next call. */
void pgpu_measurement_pause(void);
/* While paused: read what has passed in a context, give up the rest, keep no event of it, and let threads
 * read again. */
void pgpu_measurement_end_context(CUcontext context);

void pgpu_measurement_after_fork_in_child(void);

#endif
