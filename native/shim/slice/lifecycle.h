/* The two hook lists through which the slice calls the parts of the shim that stand above it: one for
 * entering the slice and for forks, one for memory pressure. main.c fills both at compile time. */
#ifndef PGPU_SHIM_LIFECYCLE_H
#define PGPU_SHIM_LIFECYCLE_H

#include <stdbool.h>

#include "cuda_abi.h"

/* What one part of the shim does at each point; NULL where it does nothing. */
struct pgpu_lifecycle {
    /* After the real cuInit and before the process has a slot. An error refuses CUDA; the callee reports it.
     */
    CUresult (*enter)(int device_count);
    /* Once the slot is claimed. */
    void (*begin)(void);
    /* Locks before a fork, in list order; unlocks in the parent and resets in the child, in reverse order. */
    void (*before_fork)(void);
    void (*after_fork)(bool is_child);
    /* In a child that was made without fork handlers (a raw clone), as it enters a slice of its own. */
    void (*after_raw_clone)(void);
};

#define PGPU_LIFECYCLE_PARTS 4
extern const struct pgpu_lifecycle pgpu_lifecycle[PGPU_LIFECYCLE_PARTS] __attribute__((visibility("hidden")));

/* Each gives up memory of `gpu` that the process no longer uses and that is still charged. Called without a
 * lock when a charge does not fit. */
#define PGPU_MEMORY_PRESSURE_PARTS 3
extern void (*const pgpu_on_memory_pressure[PGPU_MEMORY_PRESSURE_PARTS])(int gpu)
    __attribute__((visibility("hidden")));

#endif
