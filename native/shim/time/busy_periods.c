#include "time/busy_periods.h"

#include <string.h>

#include "clock.h"

/* A context's time slice, as commonly reported for NVIDIA's default. Where slices differ, the first turn of a
 * burst on a shared GPU is charged too much or too little. */
#define SLICE_NS 2000000u
/* From this length on the phase of the first turn does not matter. */
#define LONG_RUN_NS 40000000u
/* Event times are rounded, and consecutive launches are this close. */
#define NO_GAP_NS 2000u

static void remove_at(struct pgpu_intervals *intervals, unsigned at) {
    intervals->count--;
    memmove(&intervals->part[at], &intervals->part[at + 1],
            (intervals->count - at) * sizeof(intervals->part[0]));
}

static void insert(struct pgpu_intervals *intervals, uint64_t from_ns, uint64_t to_ns) {
    unsigned at = 0;
    if (intervals->count == PGPU_INTERVALS) remove_at(intervals, 0);
    while (at < intervals->count && intervals->part[at].from_ns < from_ns)
        at++;
    memmove(&intervals->part[at + 1], &intervals->part[at],
            (intervals->count - at) * sizeof(intervals->part[0]));
    intervals->part[at].from_ns = from_ns;
    intervals->part[at].to_ns = to_ns;
    intervals->count++;
}

/* Intervals that it touches are merged into it. */
uint64_t pgpu_intervals_add(struct pgpu_intervals *intervals, uint64_t from_ns, uint64_t to_ns) {
    uint64_t fresh_ns = to_ns - from_ns;
    for (unsigned at = 0; at < intervals->count;) {
        uint64_t part_from_ns = intervals->part[at].from_ns, part_to_ns = intervals->part[at].to_ns;
        if (part_to_ns < from_ns || part_from_ns > to_ns) {
            at++;
            continue;
        }
        uint64_t shared_from_ns = pgpu_most_ns(part_from_ns, from_ns),
                 shared_to_ns = pgpu_least_ns(part_to_ns, to_ns);
        fresh_ns -= pgpu_least_ns(shared_to_ns - shared_from_ns, fresh_ns);
        from_ns = pgpu_least_ns(part_from_ns, from_ns);
        to_ns = pgpu_most_ns(part_to_ns, to_ns);
        remove_at(intervals, at);
    }
    insert(intervals, from_ns, to_ns);
    return fresh_ns;
}

void pgpu_busy_period_extend(struct pgpu_busy_period *run, uint64_t from_ns, uint64_t to_ns) {
    if (from_ns > run->to_ns + NO_GAP_NS || to_ns < run->from_ns)
        *run = (struct pgpu_busy_period){.from_ns = from_ns, .to_ns = to_ns};
    if (from_ns < run->from_ns) run->from_ns = from_ns;
    if (to_ns > run->to_ns) run->to_ns = to_ns;
}

bool pgpu_busy_period_is_burst(const struct pgpu_busy_period *run) {
    return run->to_ns - run->from_ns <= SLICE_NS;
}

/* Our slices until now, each followed by those of other contexts. */
static double own_since_begin(double lasted_ns, double part) {
    double cycle_ns = SLICE_NS / part;
    double cycles = (double)(uint64_t)(lasted_ns / cycle_ns), rest_ns = lasted_ns - cycles * cycle_ns;
    return cycles * SLICE_NS + (rest_ns < SLICE_NS ? rest_ns : SLICE_NS);
}

/* The same in the mean over all phases. Runs begin and end with turns of ours, and many contexts yield the
 * rest of a turn: three quarters of a turn more than by our part. */
static double own_on_average(double lasted_ns, double part) {
    double own_ns = lasted_ns * part + 0.75 * (1 - part) * SLICE_NS;
    return lasted_ns < own_ns || lasted_ns < SLICE_NS ? lasted_ns : own_ns;
}

uint64_t pgpu_busy_period_own_ns(struct pgpu_busy_period *run, uint64_t passed_ns, double part_of_run,
                                 double part_of_batch, bool is_crowd) {
    uint64_t lasted_ns = run->to_ns - run->from_ns, own_ns = (uint64_t)((double)passed_ns * part_of_batch);
    if (lasted_ns < LONG_RUN_NS || is_crowd) {
        uint64_t all_ns = (uint64_t)(is_crowd ? own_on_average((double)lasted_ns, part_of_run)
                                              : own_since_begin((double)lasted_ns, part_of_run));
        own_ns = all_ns > run->own_ns ? all_ns - run->own_ns : 0;
        if (own_ns > passed_ns) own_ns = passed_ns;
    }
    run->own_ns += own_ns;
    return own_ns;
}
