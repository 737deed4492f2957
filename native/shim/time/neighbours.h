/* The other jobs on the board: which of them want a GPU, their guaranteed shares, and for how much of the
 * time they had work in flight beside ours. Their files are read and never mapped: a job may truncate its
 * own. */
#ifndef PGPU_SHIM_NEIGHBOURS_H
#define PGPU_SHIM_NEIGHBOURS_H

#include <stdbool.h>
#include <stdint.h>

#include "time/users.h"

/* The jobs that wanted a GPU within the last 20 ms. */
struct pgpu_company {
    unsigned count;
    double share;            /* sum of their guaranteed shares */
    double weight;           /* sum of their weights */
    double behind;           /* how far the job that lags most of its share is behind, in periods */
    bool is_lacking;         /* this process had work in flight for nearly all of the last 100 ms */
    bool is_unknown;         /* the board cannot be read: nothing may be borrowed */
    struct pgpu_users users; /* the same jobs, by user */
};

/* Read at most once a millisecond, otherwise the last result. */
struct pgpu_company pgpu_neighbours_find_company(int gpu, uint64_t now_ns);

/* Whether the files are read anew when work begins and when it is measured, so that its part of the time is
 * exact. */
void pgpu_neighbours_read_often(int gpu, bool is_often);

/* This process begins to have work in flight: the others' work counts from now on. */
void pgpu_neighbours_begin(int gpu, uint64_t now_ns);

/* The part of a time with our work in flight that the GPU spent on this process: contexts with work take
 * turns, so it is 1/n where n have work. */
double pgpu_neighbours_part(int gpu, uint64_t from_ns, uint64_t to_ns, uint64_t now_ns);

/* Whether the job's time is its user's part: the host divides the GPU's time between users and guarantees the
 * job no share. */
bool pgpu_neighbours_by_user(int gpu);

/* How many times longer than its GPU time our work may take beside other jobs, at most; this bounds what
 * others believe after a death. */
unsigned pgpu_neighbours_slowdown(int gpu);

/* The part of our measured time, as of the last window, that counts against our budget: where time
 * is divided between users, another user that wants the GPU counts as one process in flight
 * at least: so a user with one process in flight at a time never waits, whatever the others report, and uses
 * time that they leave idle. */
double pgpu_neighbours_counted(int gpu);

/* Time with work in flight that this process added to its job's board, `whole_ns` of it in bursts shorter
 * than a time slice; and all of it from its launches on. */
void pgpu_neighbours_add_published(int gpu, uint64_t busy_ns, uint64_t whole_ns);
void pgpu_neighbours_add_queued(int gpu, uint64_t queued_ns);

void pgpu_neighbours_before_fork(void);
void pgpu_neighbours_after_fork(bool is_child);

#endif
