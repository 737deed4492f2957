/* A forked child has no slot, and no mutex that a thread of its parent left locked. */
#include <stddef.h>

#include "time/gate.h"
#include "slice/holdings.h"
#include "slice/slice.h"
#include "trace/trace.h"

/* glibc keeps pthread_atfork in a static part that a C library of another kind has not; musl has no
 * __register_atfork. Both weak, so that one shim loads under either. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));
extern int pthread_atfork(void (*)(void), void (*)(void), void (*)(void)) __attribute__((weak));

static void before(void) {
    pgpu_gate_before_fork();
    pgpu_holdings_before_fork();
    pgpu_meter_before_fork(&pgpu_slice_meter);
}

static void after_in_parent(void) {
    pgpu_meter_after_fork_in_parent(&pgpu_slice_meter);
    pgpu_holdings_after_fork(false);
    pgpu_gate_after_fork(false);
}

static void after_in_child(void) {
    pgpu_meter_after_fork_in_child(&pgpu_slice_meter);
    pgpu_holdings_after_fork(true);
    pgpu_gate_after_fork(true);
    pgpu_trace_after_fork();
}

void pgpu_slice_guard_forks(void) {
    static bool is_guarded;
    if (__atomic_exchange_n(&is_guarded, true, __ATOMIC_SEQ_CST)) return;
    if (__register_atfork != NULL)
        __register_atfork(before, after_in_parent, after_in_child, NULL);
    else if (pthread_atfork != NULL)
        pthread_atfork(before, after_in_parent, after_in_child);
}
