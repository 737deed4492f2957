/* From which moments on device time ran at which pace, so that the real time of a past moment can be
 * computed. Before the oldest mark real time counts as device time. */
#ifndef SIM_MARKS_H
#define SIM_MARKS_H

#include <stdint.h>

#define SIM_MARKS 1024u

/* From here on device time runs so: `rate` of it in each of real time, above 0. */
struct sim_mark {
    uint64_t device_ns, real_ns;
    double rate;
};

/* The oldest is forgotten where there is no room. All zero: none. */
struct sim_marks {
    struct sim_mark mark[SIM_MARKS];
    unsigned count;
};

/* Remember a mark, not before the last in either time. */
void sim_marks_add(struct sim_marks *marks, struct sim_mark mark);

/* Real time at which a moment of device time came; or will come, as things run `now`. */
uint64_t sim_marks_real_ns(const struct sim_marks *marks, struct sim_mark now, uint64_t at_ns);

#endif
