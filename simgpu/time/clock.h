/* The device's time as this process sees it. It runs as real time does while the device is ours alone or we
 * are idle; it stands still while others have their turn, and runs slower beside clients of our MPS server.
 * All `_at_ns` of streams and events are in device time. */
#ifndef SIM_CLOCK_H
#define SIM_CLOCK_H

#include "time/demand.h"

void sim_clock_start(void);

/* Device time now. */
uint64_t sim_clock_now(unsigned gpu);

/* Work for the device's queue. */
struct sim_clock_work {
    uint64_t cost_ns;                /* how long it takes alone */
    uint64_t block_ns;               /* how long its blocks stay */
    bool needs_turn;                 /* it takes no time, and still waits for its context's turn */
    bool fills_gpu;                  /* it does not overlap other such work of this process */
    const struct sim_demand *demand; /* NULL: without demand */
};

/* Queue work that cannot begin before `not_before_ns`; return when it ends. */
uint64_t sim_clock_queue(unsigned gpu, uint64_t not_before_ns, const struct sim_clock_work *work);

/* How much device time this process will have used at that moment, 0 if it has come; neighbours compute from
 * the activity file when that is. */
uint64_t sim_clock_used_at(unsigned gpu, uint64_t at_ns);

/* Whether that moment has come. */
bool sim_clock_has_come(unsigned gpu, uint64_t at_ns);

/* Sleep until it has come. */
void sim_clock_wait(unsigned gpu, uint64_t at_ns);

/* Real time at which a moment of device time came, as far as it is remembered. */
uint64_t sim_clock_real_ns(unsigned gpu, uint64_t at_ns);

#endif
