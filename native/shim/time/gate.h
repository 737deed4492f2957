/* Every launch, graph launch, copy and fill passes here on its way to the driver: it waits while its job has
 * no GPU time left or is held, and is measured and traced.
 *
 *     struct pgpu_work work = {.command = {.kind = PGPU_TRACE_KERNEL, .stream = stream, …}};
 *     CUresult result = pgpu_gate_before(&work);
 *     if (result == CUDA_SUCCESS) result = PGPU_REAL(…)(…);
 *     pgpu_gate_after(&work, result);
 *
 * After an error of pgpu_gate_before the driver is not called; pgpu_gate_after is called in any case. A
 * waiting thread holds no lock of the shim, may be cancelled, and waits for time to pass, never for other
 * work to finish: so no order of a program's calls can deadlock. */
#ifndef PGPU_SHIM_GATE_H
#define PGPU_SHIM_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "memory/first_launches.h"
#include "slice/slice.h"
#include "time/work.h"
#include "trace/trace.h"

/* Whether neither a share nor a trace concerns this job: then the gate is not entered at all. */
static inline bool pgpu_gate_is_open(void) {
    const struct pgpu_limit *limit = pgpu_slice_limit();
    if (limit == NULL) return true;
    uint64_t words = 0;
    for (unsigned gpu = 0; gpu < limit->gpu_count; gpu++)
        words |= __atomic_load_n(&limit->gpu[gpu].compute, __ATOMIC_RELAXED);
    return __builtin_expect(words == 0 && !pgpu_trace_is_on(), 1);
}

/* The same for a kernel, which has a first launch. */
static inline bool pgpu_gate_lets(CUfunction function) {
    const struct pgpu_limit *limit = pgpu_slice_limit();
    if (limit == NULL) return true;
    uint64_t words = 0;
    for (unsigned gpu = 0; gpu < limit->gpu_count; gpu++)
        words |= __atomic_load_n(&limit->gpu[gpu].compute, __ATOMIC_RELAXED);
    uint32_t duties = pgpu_slice_duties();
    if (__builtin_expect((words | duties) == 0, 1)) return true;
    return words == 0 && duties < PGPU_DUTY_TRACE && !pgpu_first_launches_has(function);
}

CUresult pgpu_gate_before(struct pgpu_work *work);
void pgpu_gate_after(struct pgpu_work *work, CUresult result);

/* Around a call that waits for work in flight or polls whether it is done. */
void pgpu_gate_before_synchronisation(void);
void pgpu_gate_after_synchronisation(void);

/* Find the board, before the slot is claimed. An error, which is reported, refuses CUDA. */
CUresult pgpu_gate_enter(void);

/* Before a context ends, and its events with it. */
void pgpu_gate_end_context(CUcontext context);

/* Around fork. */
void pgpu_gate_before_fork(void);
void pgpu_gate_after_fork(bool is_child);

#endif
