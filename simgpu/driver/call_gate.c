/* Two words and a futex: one word is whether the gate is closed, one counts the calls inside. */
#include "driver/call_gate.h"

#include "state/futex.h"

__thread unsigned sim_call_depth;

static uint32_t is_closed;
static uint32_t inside;

void sim_gate_pass(void) {
    for (;;) {
        /* Counted first, then the gate is read: the thread that closes the gate and then reads the count sees
         * this call, or this call sees the closed gate. */
        __atomic_fetch_add(&inside, 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&is_closed, __ATOMIC_SEQ_CST) == 0) return;
        sim_gate_leave();
        sim_wait_while(&is_closed, 1, SIM_WAIT_FOREVER);
    }
}

void sim_gate_leave(void) {
    __atomic_fetch_sub(&inside, 1, __ATOMIC_SEQ_CST);
}

void sim_gate_close(void) {
    __atomic_store_n(&is_closed, 1, __ATOMIC_SEQ_CST);
}

void sim_gate_open(void) {
    __atomic_store_n(&is_closed, 0, __ATOMIC_SEQ_CST);
    sim_wait_end(&is_closed);
}

bool sim_gate_is_busy(void) {
    return __atomic_load_n(&inside, __ATOMIC_SEQ_CST) != 0;
}
