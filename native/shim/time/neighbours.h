/* The other jobs on the board: which of them want a GPU, their guaranteed shares, and for how much of the
 * time they had work in flight beside ours. Their files are read and never mapped: a job may truncate its
 * own. */
#ifndef PGPU_SHIM_NEIGHBOURS_H
#define PGPU_SHIM_NEIGHBOURS_H

#include <stdbool.h>
#include <stdint.h>

/* The jobs that wanted a GPU within the last 20 ms. */
struct pgpu_company {
    unsigned count;
    double share;    /* guaranteed to them together */
    double weight;   /* together */
    double behind;   /* how far the job that lags most of its share is behind, in periods */
    bool is_lacking; /* we ourselves have had work in flight nearly all of the last 100 ms */
    bool is_unknown; /* the board cannot be read: nothing may be borrowed */
};

/* At most once a millisecond, else as it was found last. */
struct pgpu_company pgpu_neighbours_find_company(int gpu, uint64_t now_ns);

/* Work of ours begins to be in flight: what others have in flight counts from now on. */
void pgpu_neighbours_begin(int gpu, uint64_t now_ns);

/* Which part of a time in which our work was in flight the GPU spent on this process: contexts with work take
 * turns, so 1/n where n have it. */
double pgpu_neighbours_part(int gpu, uint64_t from_ns, uint64_t to_ns, uint64_t now_ns);

/* Time with work in flight that this process added to its job's board. */
void pgpu_neighbours_add_published(int gpu, uint64_t busy_ns);

void pgpu_neighbours_before_fork(void);
void pgpu_neighbours_after_fork(bool is_child);

#endif
