/* What a profiled job does, written into the log behind its usage file (trace_abi.h).
 *
 * Off unless the limit file says so, and then one comparison. Around each kernel, graph and copy lie two
 * events; they are read when somebody else synchronises, never by waiting for them. A stream that is being
 * captured is left alone. */
#ifndef PGPU_SHIM_TRACE_H
#define PGPU_SHIM_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "slice/slice.h"
#include "trace_abi.h"

extern struct pgpu_trace *pgpu_trace_published; /* NULL: off */

static inline struct pgpu_trace *pgpu_trace_log(void) {
    return __atomic_load_n(&pgpu_trace_published, __ATOMIC_ACQUIRE);
}

static inline bool pgpu_trace_is_on(void) {
    return __builtin_expect(pgpu_trace_log() != NULL, 0);
}

/* Begin to trace where the limit file says so; once a slot was claimed. */
void pgpu_trace_enter(void);

/* A forked child writes nothing. */
void pgpu_trace_after_fork(void);

/* A kernel, a graph or a copy that is about to be handed to the driver. */
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

/* How many nodes an executable graph was made of; 0 unknown. */
uint64_t pgpu_trace_nodes_of(CUgraphExec graph);

/* Read the events that have passed; after a synchronisation. */
void pgpu_trace_settle(void);

/* Before a context ends: its events go with it. */
void pgpu_trace_end_context(CUcontext context);

/* A context that was met first; `bytes` were charged for it. */
void pgpu_trace_context(const struct pgpu_place *place, uint64_t bytes);

/* The process has `change` bytes more of a kind, two's complement. Calls nobody: under any mutex. */
void pgpu_trace_memory(int gpu, enum pgpu_trace_memory kind, uint64_t change);

/* For the other parts of the trace. */
uint64_t pgpu_trace_now_ns(void);
void pgpu_trace_count(uint64_t *word, uint64_t more);
/* Write a record down; NULL where the log is full. It may be given its duration later. */
struct pgpu_trace_record *pgpu_trace_write(const struct pgpu_trace_record *record);
/* The row of a kernel and its shape, plus 1; 0: none is free. */
uint32_t pgpu_trace_shape_of(const struct pgpu_trace_command *command);
void pgpu_trace_measure(uint32_t shape, uint64_t duration_ns);
struct pgpu_trace_pair *pgpu_trace_pair_open(const struct pgpu_trace_command *command);
/* `record` may be NULL: the shape learns its duration all the same. */
void pgpu_trace_pair_close(struct pgpu_trace_pair *pair, const struct pgpu_trace_command *command,
                           struct pgpu_trace_record *record, uint32_t shape);
void pgpu_trace_pair_drop(struct pgpu_trace_pair *pair);
void pgpu_trace_forget_events(void);

#endif
