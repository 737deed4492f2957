/* What of the last moments is covered by batches that were counted, so that overlapping ones count once. */
#ifndef PGPU_SHIM_INTERVALS_H
#define PGPU_SHIM_INTERVALS_H

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

#endif
