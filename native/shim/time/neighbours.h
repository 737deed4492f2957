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
    double share;    /* sum of their guaranteed shares */
    double weight;   /* sum of their weights */
    double behind;   /* how far the job that lags most of its share is behind, in periods */
    bool is_lacking; /* this process had work in flight for nearly all of the last 100 ms */
    bool is_unknown; /* the board cannot be read: nothing may be borrowed */
};

/* Read at most once a millisecond, otherwise the last result. */
struct pgpu_company pgpu_neighbours_find_company(int gpu, uint64_t now_ns);

/* This process begins to have work in flight: the others' work counts from now on. */
void pgpu_neighbours_begin(int gpu, uint64_t now_ns);

/* The part of a time with our work in flight that the GPU spent on this process: contexts with work take
 * turns, so it is 1/n where n have work. */
double pgpu_neighbours_part(int gpu, uint64_t from_ns, uint64_t to_ns, uint64_t now_ns);

/* Time with work in flight that this process added to its job's board. */
void pgpu_neighbours_add_published(int gpu, uint64_t busy_ns);

void pgpu_neighbours_before_fork(void);
void pgpu_neighbours_after_fork(bool is_child);

#endif
