/* How long what this process launches takes on the GPU, from pairs of events around up to 64 launches or 5 ms
 * of estimated work, whichever comes first.
 *
 * An event is laid beside a launch, in the same call, so that no program waits for one that it would not wait
 * for without: in the legacy default stream an event is a barrier. Only the end of a few small launches may
 * be laid later, when somebody closes their batch: in a stream that was made, in a thread's own default
 * stream by that thread alone, and in the legacy one as long as the process has no blocking stream. Then it
 * tells too much, which is charged all the same, and their kernels are measured one by one from then on. */
#ifndef PGPU_SHIM_TIMING_H
#define PGPU_SHIM_TIMING_H

#include <stdbool.h>
#include <stdint.h>

#include "time/gate.h"

#define PGPU_BATCH_LAUNCHES 64u
/* From here on each launch has its end measured. */
#define PGPU_SINGLE_FROM_NS 20000u

struct pgpu_batch {
    CUevent start, end; /* of the batch's context; NULL: none were to be had */
    CUcontext context;
    CUstream stream;
    uint64_t begun_at_ns;
    uint64_t estimate_ns; /* of all its launches */
    uint64_t estimates_ns[PGPU_BATCH_LAUNCHES];
    uint32_t row[PGPU_BATCH_LAUNCHES];
    uint32_t launches;
    int8_t gpu;
    bool is_open;
    bool is_single; /* one launch, measured by itself */
    bool has_end;   /* right behind the last launch */
    bool is_loose;  /* the stream may have run dry within it, so its events may tell too much */
};

/* What was launched last into a lane: most launches are like the one before. */
struct pgpu_last {
    CUfunction function;
    CUgraphExec graph;
    uint32_t grid[3], block[3];
    uint64_t key; /* 0: nothing was */
};

struct pgpu_lane {
    CUstream stream;
    CUcontext context; /* NULL: nobody's yet */
    uint64_t used_at_ns;
    uint64_t idle_at_ns;             /* when all that was launched into it should be done */
    uint64_t may_until_ns, may_word; /* until then launches need not ask again */
    uint32_t *open_mask;             /* the registry's own, as are the next three */
    uint8_t at, holder;
    bool is_ended; /* its stream or context is gone, or about to be */
    int8_t gpu;
    bool is_per_thread;
    uint8_t kind; /* of stream */
    bool may_freely;
    struct pgpu_last last;
    struct pgpu_batch batch;
};

/* The lane of a work, new or as it was left; NULL: it has no place that is known. */
struct pgpu_lane *pgpu_timing_lane(const struct pgpu_trace_command *command);

/* Whether a work may become part of the open batch of its lane without a look at the clock: then the batch
 * may have a gap, and nothing more is to be done before the launch. */
static inline bool pgpu_timing_is_joinable(const struct pgpu_work *work) {
    return work->lane->batch.is_open && work->is_known && !work->is_watched &&
           work->estimate_ns < PGPU_SINGLE_FROM_NS;
}

/* Before the driver is asked, in a lane that is held: lay the first event where a batch begins. */
void pgpu_timing_begin(struct pgpu_work *work);

/* It was launched, or was not. The lane is released. */
void pgpu_timing_end(struct pgpu_work *work, CUresult result);

/* What this thread has launched on a GPU and is not charged yet. */
uint64_t pgpu_timing_uncharged_ns(int gpu);

/* Close this thread's batches, and those that threads which ended have left. */
void pgpu_timing_close(void);

/* Close other threads' batches that should have been over long ago. */
void pgpu_timing_close_forgotten(uint64_t now_ns);

/* What should still be in flight of this process, by its estimates. */
uint64_t pgpu_timing_queued_ns(int gpu, uint64_t now_ns);

/* Tell the board that this process wants the GPU. */
void pgpu_timing_publish_demand(int gpu, uint64_t now_ns);

/* A copy is in flight, for about so long. */
void pgpu_timing_expect_copy(int gpu, uint64_t now_ns, uint64_t cost_ns);

/* Whether nothing of this process is in flight. */
bool pgpu_timing_is_idle(int gpu, uint64_t now_ns);

/* Close all legacy streams' batches; and wait for those who are closing one. */
void pgpu_timing_close_legacy(void);
void pgpu_timing_outlast_closing(void);

/* A stream or a context ends: no event is laid into it from here on. */
void pgpu_timing_end_stream(CUstream stream);
void pgpu_timing_end_context(CUcontext context);

void pgpu_timing_after_fork_in_child(void);

uint64_t pgpu_timing_now_ns(void);

#endif
