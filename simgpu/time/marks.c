#include "time/marks.h"

void sim_marks_add(struct sim_marks *marks, struct sim_mark mark) {
    marks->mark[marks->count++ % SIM_MARKS] = mark;
}

/* The last one not after a moment of device time, else the first there is. */
static struct sim_mark mark_before(const struct sim_marks *marks, struct sim_mark now, uint64_t at_ns) {
    struct sim_mark mark = now;
    unsigned kept = marks->count < SIM_MARKS ? marks->count : SIM_MARKS;
    for (unsigned back = 1; back <= kept && mark.device_ns > at_ns; back++)
        mark = marks->mark[(marks->count - back) % SIM_MARKS];
    return mark;
}

uint64_t sim_marks_real_ns(const struct sim_marks *marks, struct sim_mark now, uint64_t at_ns) {
    struct sim_mark mark = mark_before(marks, now, at_ns);
    if (at_ns <= mark.device_ns) return mark.real_ns - (mark.device_ns - at_ns);
    return mark.real_ns + (uint64_t)((double)(at_ns - mark.device_ns) / mark.rate);
}
