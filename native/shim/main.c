/* The composition of the shim: cuInit, and the two hook lists of slice/lifecycle.h. This file alone includes
 * every part; all dependencies below it point downwards. */
#include "functions.h"
#include "memory/deferred_frees.h"
#include "memory/exported_memory.h"
#include "memory/paging.h"
#include "memory/pools.h"
#include "slice/holdings.h"
#include "slice/lifecycle.h"
#include "slice/slice.h"
#include "time/gate.h"
#include "trace/trace.h"

PGPU_EXPORT CUresult cuInit(unsigned int flags) {
    CUresult result = PGPU_REAL(cuInit)(flags);
    return result == CUDA_SUCCESS ? pgpu_slice_enter() : result;
}

static CUresult open_gate(int device_count) {
    (void)device_count;
    return pgpu_gate_enter();
}

static void empty_holdings(void) {
    pgpu_holdings_after_fork(true);
}

static void stop_trace(bool is_child) {
    if (is_child) pgpu_trace_after_fork();
}

/* The gate's locks are taken before the table's, and released after them. */
const struct pgpu_lifecycle pgpu_lifecycle[PGPU_LIFECYCLE_PARTS] = {
    {.enter = pgpu_paging_check},
    {.enter = open_gate, .before_fork = pgpu_gate_before_fork, .after_fork = pgpu_gate_after_fork},
    {.before_fork = pgpu_holdings_before_fork,
     .after_fork = pgpu_holdings_after_fork,
     .after_raw_clone = empty_holdings},
    {.begin = pgpu_trace_enter, .after_fork = stop_trace, .after_raw_clone = pgpu_trace_after_fork},
};

static void settle_frees(int gpu) {
    (void)gpu;
    pgpu_deferred_frees_settle();
}

static void settle_exports(int gpu) {
    (void)gpu;
    pgpu_exported_memory_settle();
}

static void trim_pools(int gpu) {
    pgpu_pools_trim(gpu);
}

void (*const pgpu_on_memory_pressure[PGPU_MEMORY_PRESSURE_PARTS])(int gpu) = {
    settle_frees,
    settle_exports,
    trim_pools,
};
