/* The time with work of ours in flight, and how much of it the GPU spent on us. Pure: no clock and no shared
 * state.
 *
 * Intervals hold what counted batches have covered, so that overlapping ones count once. A busy period is a
 * time in which our queue never ran dry. Our part of it follows from the rotation of time slices: a queue
 * that was empty has the GPU for a whole slice from its first event on, and again after all others had
 * theirs. Over many slices this is our part of the turns; a burst shorter than a slice is all ours. */
#ifndef PGPU_SHIM_BUSY_PERIODS_H
#define PGPU_SHIM_BUSY_PERIODS_H

#include <stdbool.h>
#include <stdint.h>

#define PGPU_INTERVALS 16u

/* Disjoint and in order; the oldest is forgotten where there is no room. All zero: none. */
struct pgpu_intervals {
    struct {
        uint64_t from_ns, to_ns;
    } part[PGPU_INTERVALS];
    unsigned count;
};

/* Cover an interval; return how much of it was not covered before. */
uint64_t pgpu_intervals_add(struct pgpu_intervals *intervals, uint64_t from_ns, uint64_t to_ns);

struct pgpu_busy_period {
    uint64_t from_ns, to_ns;
    uint64_t own_ns; /* the part that was attributed to us */
};

/* A batch that begins within the period extends it; a later one begins another period. */
void pgpu_busy_period_extend(struct pgpu_busy_period *run, uint64_t from_ns, uint64_t to_ns);

/* Whether it has lasted no longer than a time slice, so that no other context had a turn. */
bool pgpu_busy_period_is_burst(const struct pgpu_busy_period *run);

/* How much more of it is ours with a batch, of which no earlier one has covered `passed_ns`: with our part of
 * the turns since the period began, and since the batch did. `is_crowd`: the number of contexts changes, so
 * the phase of the turns is not known. */
uint64_t pgpu_busy_period_own_ns(struct pgpu_busy_period *run, uint64_t passed_ns, double part_of_run,
                                 double part_of_batch, bool is_crowd);

#endif
