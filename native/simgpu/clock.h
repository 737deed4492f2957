/* The device's time as this process sees it. It runs as real time does while the device is ours alone or we
 * are idle, and k times slower while k processes have work queued: they share the device equally, as
 * time-sliced contexts do. All `_at_ns` of streams and events are in device time. */
#ifndef SIM_CLOCK_H
#define SIM_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

void sim_clock_start(void);

/* Device time now. */
uint64_t sim_clock_now(unsigned gpu);

/* Queue `cost_ns` of work that cannot begin before `not_before_ns`; return when it ends. Work that fills the
 * GPU does not overlap other such work of this process. */
uint64_t sim_clock_queue(unsigned gpu, uint64_t not_before_ns, uint64_t cost_ns, bool fills_gpu);

/* How much device time this process will have used when that moment comes, 0 if it has come; neighbours can
 * tell from the activity file when that is. */
uint64_t sim_clock_used_at(unsigned gpu, uint64_t at_ns);

/* Whether that moment has come. */
bool sim_clock_has_come(unsigned gpu, uint64_t at_ns);

/* Sleep until it has come. */
void sim_clock_wait(unsigned gpu, uint64_t at_ns);

/* Real time at which a moment of device time came, as far as it is remembered. */
uint64_t sim_clock_real_ns(unsigned gpu, uint64_t at_ns);

#endif
