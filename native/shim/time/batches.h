/* Batches of launches that are closed, until their events have passed, and events to lay around new ones. */
#ifndef PGPU_SHIM_BATCHES_H
#define PGPU_SHIM_BATCHES_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

#define PGPU_BATCH_LAUNCHES 64u
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
    bool is_loose;  /* the stream may have run dry in between, so that the events measure too much */
};

/* Two events of a context, or NULLs. */
void pgpu_batches_take_events(CUcontext context, CUevent *start, CUevent *end);

/* For the next to take. */
void pgpu_batches_give_events(const struct pgpu_batch *batch);

/* Hand a batch over. False: there is no memory for it. */
bool pgpu_batches_put(const struct pgpu_batch *batch);

/* The batch of a GPU that was put after `former`, or its oldest; NULL: there is none. It stays the caller's
 * until it is finished: one thread at a time goes through a GPU's batches. */
struct pgpu_batch *pgpu_batches_next(int gpu, struct pgpu_batch *former);

/* It was measured, or never will be; its events can be used again, if it has any left. */
void pgpu_batches_finish(struct pgpu_batch *batch);

/* How many of a GPU are not finished. */
unsigned pgpu_batches_left(int gpu);

/* What is left to do of those, by estimates and as if the GPU were ours alone. */
uint64_t pgpu_batches_queued_ns(int gpu, uint64_t now_ns);

/* The context's unused events go with it. */
void pgpu_batches_end_context(CUcontext context);
void pgpu_batches_before_fork(void);
void pgpu_batches_after_fork(bool is_child);

#endif
