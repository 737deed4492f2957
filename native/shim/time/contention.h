/* Which part of the time that our work was in flight the GPU spent on it: contexts with work take turns, so
 * 1/n where n have it; how many had it is known of each only as a part of the time, taken as independent. */
#ifndef PGPU_SHIM_CONTENTION_H
#define PGPU_SHIM_CONTENTION_H

#include <stdint.h>

#define PGPU_CONTENTION_MOST 255u

struct pgpu_contention {
    double likelihood[PGPU_CONTENTION_MOST + 1]; /* of each number of others in flight beside us */
    unsigned most;
};
#define PGPU_CONTENTION_NOBODY {.likelihood = {1}}

/* A job that had work in flight for `busy_ns` of the window, in at most `processes` processes at once: what
 * it says beyond that is not believed. */
void pgpu_contention_join(struct pgpu_contention *crowd, uint64_t busy_ns, uint64_t window_ns,
                          unsigned processes);

/* 1 where nobody joined; at least 1 / (1 + all processes that joined). */
double pgpu_contention_own_part(const struct pgpu_contention *crowd);

#endif
