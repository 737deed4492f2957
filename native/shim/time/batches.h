/* The queue of closed batches until their events have passed, and a store of unused events. */
#ifndef PGPU_SHIM_BATCHES_H
#define PGPU_SHIM_BATCHES_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

#define PGPU_BATCH_LAUNCHES 64u
struct pgpu_batch {
    CUevent start, end; /* of the batch's context; NULL: the driver refused one */
    CUcontext context;
    CUstream stream;
    uint64_t begun_at_ns, ended_at_ns; /* of the host, beside the events */
    uint64_t estimate_ns;              /* of all its launches */
    uint64_t estimates_ns[PGPU_BATCH_LAUNCHES];
    uint32_t row[PGPU_BATCH_LAUNCHES];
    uint32_t launches;
    int8_t gpu;
    bool is_open;
    bool is_exact;  /* its launches are */
    bool is_single; /* one launch, measured by itself */
    bool has_end;   /* the end event was recorded right behind the last launch */
    bool is_loose;  /* the stream may have run dry in between, so that the events measure too much */
};

/* Two events of a context, or NULLs. */
void pgpu_batches_take_events(CUcontext context, CUevent *start, CUevent *end);

/* Return a batch's events to the store. */
void pgpu_batches_give_events(const struct pgpu_batch *batch);

/* Copy a batch into the queue. False: no memory. */
bool pgpu_batches_put(const struct pgpu_batch *batch);

/* The batch of a GPU that was put after `former`, or its oldest; NULL: there is none. It stays the caller's
 * until it is finished: one thread at a time goes through a GPU's batches. */
struct pgpu_batch *pgpu_batches_next(int gpu, struct pgpu_batch *former);

/* It was measured, or is given up; its remaining events go back to the store. */
void pgpu_batches_finish(struct pgpu_batch *batch);

/* Number of unfinished batches of a GPU. */
unsigned pgpu_batches_left(int gpu);

/* Their remaining time by estimates, as if the GPU were ours alone. */
uint64_t pgpu_batches_queued_ns(int gpu, uint64_t now_ns);

/* The context's unused events go with it. */
void pgpu_batches_end_context(CUcontext context);
void pgpu_batches_before_fork(void);
void pgpu_batches_after_fork(bool is_child);

#endif
