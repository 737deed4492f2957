/* What a profiled job launches, written into its log.
 *
 * Two events are recorded around each kernel, graph and copy. They are read when the program synchronises,
 * and never waited for. A stream that captures gets none. */
#ifndef PGPU_SHIM_TRACE_H
#define PGPU_SHIM_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "slice/slice.h"
#include "trace/trace_log.h"

/* A forked child writes nothing. */
void pgpu_trace_after_fork(void);

/* A kernel, a graph or a copy just before its driver call. */
struct pgpu_trace_command {
    enum pgpu_trace_kind kind;
    struct pgpu_place place;
    CUstream stream;
    bool is_per_thread; /* the handle 0 means the thread's own default stream */
    CUfunction function;
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t shared_bytes;
    uint64_t bytes;  /* of a copy; nodes of a graph */
    uint32_t detail; /* of a copy: enum pgpu_trace_direction */
};

/* Between begin and end; on the caller's stack. */
struct pgpu_trace_span {
    struct pgpu_trace_pair *pair; /* NULL: no events lie around it */
    uint64_t at_ns;
    uint32_t shape;
    uint8_t flags;
    bool is_open;
};

void pgpu_trace_begin(const struct pgpu_trace_command *command, struct pgpu_trace_span *span);
void pgpu_trace_end(const struct pgpu_trace_command *command, struct pgpu_trace_span *span, CUresult result);

/* Number of nodes of an executable graph; 0: unknown. */
uint64_t pgpu_trace_nodes_of(CUgraphExec graph);

/* Read the events that have passed; after a synchronisation. */
void pgpu_trace_settle(void);

/* Before a context ends: its events go with it. */
void pgpu_trace_end_context(CUcontext context);

#endif
