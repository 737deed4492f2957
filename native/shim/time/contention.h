/* The part of the time with our work in flight that the GPU spent on it. Contexts with work take turns, so it
 * is 1/n where n have work; of each context only the part of the time with work in flight is published, and
 * these parts are treated as independent. */
#ifndef PGPU_SHIM_CONTENTION_H
#define PGPU_SHIM_CONTENTION_H

#include <stdint.h>

#define PGPU_CONTENTION_MOST 255u

struct pgpu_contention {
    double likelihood[PGPU_CONTENTION_MOST + 1]; /* of each number of others in flight beside us */
    unsigned most;
};
#define PGPU_CONTENTION_NOBODY {.likelihood = {1}}

/* A job that had work in flight for `busy_ns` of the window, in at most `processes` processes at once: larger
 * values are capped. */
void pgpu_contention_join(struct pgpu_contention *contention, uint64_t busy_ns, uint64_t window_ns,
                          unsigned processes);

/* 1 where no job joined; at least 1 / (1 + all processes that joined). */
double pgpu_contention_own_part(const struct pgpu_contention *contention);

#endif
