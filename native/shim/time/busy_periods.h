/* How much of a busy period (a time in which our queue never ran dry) the GPU spent on our work, by the way
 * in which time slices rotate: a queue that was empty has the GPU for a whole slice from its first event on,
 * and again after all others had theirs. Over many slices this is our part of the turns; a burst shorter than
 * a slice is all ours. */
#ifndef PGPU_SHIM_BUSY_PERIODS_H
#define PGPU_SHIM_BUSY_PERIODS_H

#include <stdint.h>

/* A time in which our queue never was dry. */
struct pgpu_busy_period {
    uint64_t from_ns, to_ns;
    uint64_t own_ns; /* the part that was attributed to us */
};

/* A batch that began then goes on with the run, or begins another. */
void pgpu_busy_period_extend(struct pgpu_busy_period *run, uint64_t from_ns, uint64_t to_ns);

/* How much more of it is ours with a batch, of which no earlier one has covered `passed_ns`: with our part of
 * the turns since the run began, and since the batch did. */
uint64_t pgpu_busy_period_own_ns(struct pgpu_busy_period *run, uint64_t passed_ns, double part_of_run,
                                 double part_of_batch);

#endif
