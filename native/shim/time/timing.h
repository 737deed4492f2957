/* How long launched work takes on the GPU, from event pairs around up to 64 launches or 5 ms of estimated
 * work. Where shares depend on it (`is_exact`), a batch also ends where its stream may have run dry, and
 * kernels of 20 us or more have an end event each; elsewhere a batch may contain pauses, so that programs
 * that launch small kernels one by one pay for few events.
 *
 * An event is recorded beside a launch, in the same call, so that no program waits where it would not wait
 * without it: in the legacy default stream an event is a barrier. Only the end event of a few small launches
 * may be recorded later, when their batch is closed: in a stream that the program created, in a thread's own
 * default stream by this thread alone, and in the legacy one while the process has no blocking stream. Then
 * the pair measures too much, which is charged all the same, and the kernels are measured one by one from
 * then on. */
#ifndef PGPU_SHIM_TIMING_H
#define PGPU_SHIM_TIMING_H

#include <stdbool.h>
#include <stdint.h>

#include "time/lanes.h"
#include "time/work.h"

/* From this length on the end of each launch is measured. */
#define PGPU_SINGLE_FROM_NS 20000u

/* The lane of a command, new or existing; NULL: its place is unknown. */
struct pgpu_lane *pgpu_timing_lane(const struct pgpu_trace_command *command);

/* Whether a launch may join the open batch of its lane without reading the clock: the batch may then contain
 * a gap, and nothing else is left to do before the launch. */
static inline bool pgpu_timing_is_joinable(const struct pgpu_work *work) {
    return work->lane->batch.is_open && work->is_known && !work->is_watched &&
           work->estimate_ns < PGPU_SINGLE_FROM_NS;
}

/* Before the driver call, with the lane held: record the first event where a batch begins. */
void pgpu_timing_begin(struct pgpu_work *work);

/* The driver accepted the launch or refused it. The lane is released. */
void pgpu_timing_end(struct pgpu_work *work, CUresult result);

/* GPU time that this thread has launched and that is not charged yet. */
uint64_t pgpu_timing_uncharged_ns(int gpu);

/* Close this thread's batches, and those of threads that have ended. */
void pgpu_timing_close(void);

/* Close other threads' batches that should have been over long ago, and read all that the GPU has finished.
 */
void pgpu_timing_settle(int gpu);

/* A blocking stream is about to exist: from now on no event is recorded late into a legacy default stream. */
void pgpu_timing_note_blocking_stream(void);
/* The same if this stream, which is about to get work, is a blocking one. */
void pgpu_timing_note_use(CUstream stream, bool is_per_thread);

/* A stream ends: its batches are closed and no event is recorded in it from here on. */
void pgpu_timing_end_stream(CUstream stream);
/* A context ends: what has passed in it is read, what has not is given up, and no event of it is kept. */
void pgpu_timing_end_context(CUcontext context);

void pgpu_timing_after_fork_in_child(void);

#endif
