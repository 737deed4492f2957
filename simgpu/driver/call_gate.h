/* The gate before every CUDA call, which a checkpoint closes. Calls inside are counted, so that the thread
 * that closes it can wait until none is left. */
#ifndef SIM_CALL_GATE_H
#define SIM_CALL_GATE_H

#include <stdbool.h>
#include <stdint.h>

#define SIM_GATE_INTERNAL __attribute__((visibility("hidden")))

extern SIM_GATE_INTERNAL __thread unsigned sim_call_depth; /* calls of the driver that call others */

/* Wait until the gate is open, and count this call. */
SIM_GATE_INTERNAL void sim_gate_pass(void);
SIM_GATE_INTERNAL void sim_gate_leave(void);

SIM_GATE_INTERNAL void sim_gate_close(void);
SIM_GATE_INTERNAL void sim_gate_open(void);
/* Whether a call is inside. */
SIM_GATE_INTERNAL bool sim_gate_is_busy(void);

/* Return whether there is anything to end: nothing in a forked child, which must not wait for its parent. */
static inline bool sim_call_begin(bool is_ready) {
    if (!is_ready) return false;
    if (sim_call_depth++ == 0) sim_gate_pass();
    return true;
}

static inline void sim_call_end(const bool *has_begun) {
    if (*has_begun && --sim_call_depth == 0) sim_gate_leave();
}

#endif
