/* One piece of work for a device: the request of a stream call, or the content of a graph's node. It is done
 * at once where nothing stands before it, waits behind a host function where one does, and becomes a node
 * where the stream captures.
 *
 * Bytes move when the work is accepted; its time passes on the stream's clock. A kernel computes nothing, so
 * only host functions could observe an early copy, and behind those it waits. */
#ifndef SIM_WORK_H
#define SIM_WORK_H

#include "launch/cost.h"
#include "stream/stream.h"

struct sim_kernel_launch {
    CUfunction function;
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    uint64_t argument[SIM_COST_ARGUMENTS]; /* the parameters that its cost depends on */
    bool is_cooperative;
};

/* Rows of bytes; places of arrays are resolved to addresses. */
struct sim_copy {
    uintptr_t to, from;
    size_t width_bytes, height, depth;
    size_t to_row_bytes, from_row_bytes;     /* from row to row */
    size_t to_slice_bytes, from_slice_bytes; /* from slice to slice */
    bool crosses_bus;                        /* between host and device, or two devices */
};

struct sim_fill {
    uintptr_t to;
    uint32_t value, element_bytes;
    size_t width, height, row_bytes; /* width in elements */
};

struct sim_host_call {
    CUhostFn function;
    CUstreamCallback callback; /* of cuStreamAddCallback; then `function` is NULL */
    CUstream stream;
    void *data;
};

enum sim_work_kind {
    SIM_WORK_KERNEL,
    SIM_WORK_COPY,
    SIM_WORK_FILL,
    SIM_WORK_HOST,
    SIM_WORK_RECORD,
    SIM_WORK_AWAIT,
    SIM_WORK_FREE,
    SIM_WORK_ALLOC,
    SIM_WORK_WRITE, /* cuStreamWriteValue */
    SIM_WORK_CHECK, /* cuStreamWaitValue */
    SIM_WORK_REDUCE,
    SIM_WORK_MOVE, /* of managed memory over the bus */
    SIM_WORK_NOTHING,
};

struct sim_value {
    uintptr_t at;
    uint64_t value;
    unsigned bytes, flags; /* of a reduction: which one, a CUstreamAtomicReductionOpType */
};

struct sim_work {
    enum sim_work_kind kind;
    union {
        struct sim_kernel_launch kernel;
        struct sim_copy copy;
        struct sim_fill fill;
        struct sim_host_call host;
        struct {
            CUevent event;
            uint64_t recording; /* of a deferred work with a shared event: which of its recordings */
        };
        uint64_t moved_bytes;
        CUdeviceptr address; /* to free, or reserved for an allocation */
        struct sim_value value;
    };
};

/* Queue it on a stream of the current context. Not under sim_lock. */
CUresult sim_submit(CUstream stream, const struct sim_work *work);
/* As above, then wait for it. */
CUresult sim_submit_and_wait(CUstream stream, const struct sim_work *work);

/* An operation of a batch as work, with its checks; and back. */
CUresult sim_value_translate(const CUstreamBatchMemOpParams *operation, struct sim_work *work);
void sim_value_describe(const struct sim_work *work, CUstreamBatchMemOpParams *operation);
static inline bool sim_is_value_work(const struct sim_work *work) {
    return work->kind == SIM_WORK_WRITE || work->kind == SIM_WORK_CHECK || work->kind == SIM_WORK_REDUCE;
}

/* Move what it moves, here and now. Not under sim_lock. */
void sim_perform(const struct sim_work *work);
/* Put its time on a stream's clock. Under sim_lock. */
void sim_charge_time(CUstream stream, const struct sim_work *work);

/* Record an event: not before a moment, and once its context has the GPU. Under sim_lock. */
void sim_event_mark(CUevent event, unsigned gpu, uint64_t not_before_ns);

/* Put it behind what waits on the stream already. Under sim_lock. */
CUresult sim_defer(CUstream stream, const struct sim_work *work);
/* Wait until a number of deferred works are done. Not under sim_lock. */
void sim_deferred_wait(CUstream stream, uint64_t count);
/* Wait until no recording of an event waits behind a host function. Not under sim_lock. */
void sim_event_settle(CUevent event);

#endif
