/* What of a time with work in flight was ours, by how turns go: whose queue was dry has its turn from its
 * first event on, for a slice, and is back after the others had theirs. Over many slices that is its part of
 * the turns; a burst that is shorter than a slice is all its own. */
#ifndef PGPU_SHIM_BUSY_PERIODS_H
#define PGPU_SHIM_BUSY_PERIODS_H

#include <stdint.h>

/* A time in which our queue never was dry. */
struct pgpu_busy_period {
    uint64_t from_ns, to_ns;
    uint64_t own_ns; /* what was told to be ours of it */
};

/* A batch that began then goes on with the run, or begins another. */
void pgpu_busy_period_meet(struct pgpu_busy_period *run, uint64_t from_ns, uint64_t to_ns);

/* How much more of it is ours with a batch, of which no earlier one has covered `passed_ns`: with our part of
 * the turns since the run began, and since the batch did. */
uint64_t pgpu_busy_period_own_ns(struct pgpu_busy_period *run, uint64_t passed_ns, double part_of_run,
                                 double part_of_batch);

#endif
