/* The processes that are on a GPU at present, from what they publish, and our speed beside them. */
#ifndef SIM_NEIGHBOURS_H
#define SIM_NEIGHBOURS_H

#include "time/turns.h"

struct sim_neighbours {
    double rate;     /* at which our time passes while our group has the GPU, above 0 and at most 1 */
    unsigned groups; /* that have work, ours included */
    bool has_others; /* other processes live on this GPU, with work or without */
};

#define SIM_NOBODY ((struct sim_neighbours){.rate = 1})

/* Our own slot must be up to date; the account of turns has the processes with work. */
struct sim_neighbours sim_neighbours_read(unsigned gpu, const struct sim_turns *turns, uint64_t now_ns);

/* How long a process's window is. */
uint64_t sim_neighbours_window_ns(unsigned gpu);

#endif
