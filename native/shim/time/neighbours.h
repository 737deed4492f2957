/* The other jobs on the board: who of them wants a GPU, what they are entitled to, and how much of the time
 * their work was in flight beside ours. Their files are read, never mapped: a job may cut its own short. */
#ifndef PGPU_SHIM_NEIGHBOURS_H
#define PGPU_SHIM_NEIGHBOURS_H

#include <stdbool.h>
#include <stdint.h>

/* Those that wanted a GPU within the last 20 ms. */
struct pgpu_company {
    unsigned count;
    double share;    /* guaranteed to them together */
    double weight;   /* together */
    double behind;   /* by how many periods' worth the one who lacks most of its share is */
    bool is_lacking; /* we ourselves have had work in flight nearly all of the last 100 ms */
    bool is_unknown; /* the board cannot be read: nothing may be borrowed */
};

/* At most once a millisecond, else as it was found last. */
struct pgpu_company pgpu_neighbours_company(int gpu, uint64_t now_ns);

/* Work of ours begins to be in flight: what others have in flight counts from now on. */
void pgpu_neighbours_begin(int gpu, uint64_t now_ns);

/* Which part of a time in which our work was in flight the GPU spent on this process: contexts with work take
 * turns, so 1/n where n have it. */
double pgpu_neighbours_part(int gpu, uint64_t from_ns, uint64_t to_ns, uint64_t now_ns);

/* Time with work in flight that this process itself has told of on its job's board. */
void pgpu_neighbours_told(int gpu, uint64_t busy_ns);

void pgpu_neighbours_before_fork(void);
void pgpu_neighbours_after_fork(bool is_child);

#endif
