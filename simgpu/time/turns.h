/* The turns of all processes on a GPU. Pure.
 *
 * Each process without MPS is a group, and so are all clients of one MPS server. Groups with work go round in
 * a cycle, each with a window; a switch between two of them takes time that counts for no group. There is one
 * account for all, and every reader first carries it on to the present moment: so no two groups ever have the
 * GPU at once, and none waits for one without work. The caller holds the account's lock. */
#ifndef SIM_TURNS_H
#define SIM_TURNS_H

#include <stdbool.h>
#include <stdint.h>

#define SIM_RUNNERS    1024u
#define SIM_WINDOW_LOG 2048u

/* A process, by its slot. */
struct sim_runner {
    uint64_t left_ns;    /* real time that its queue still needs of the GPU; 0: it is empty */
    uint64_t held_ns;    /* real time that it has had of it, ever */
    uint64_t emptied_ns; /* when its queue was emptied last */
    uint64_t server;     /* its MPS server, 0: none */
    uint64_t window_ns;
};

/* A time in which a process had the GPU. */
struct sim_window {
    uint64_t runner, from_ns, to_ns;
};

struct sim_turns {
    uint64_t now_ns;
    uint64_t holder;                 /* 1 + the runner whose group has the GPU, or had it last; 0: none yet */
    uint64_t switched_at_ns;         /* when a switch under way is over */
    uint64_t window_ends_ns;         /* of the holder */
    uint64_t switch_ns;              /* how long one takes */
    uint64_t keeps_windows;          /* 1: a group without work keeps the GPU until its window ends */
    uint64_t lost_ns;                /* to switches and kept windows, ever */
    uint64_t logged;                 /* windows ever; window i lies at i % SIM_WINDOW_LOG */
    uint64_t busy[SIM_RUNNERS / 64]; /* a bit for each runner with work */
    struct sim_window log[SIM_WINDOW_LOG];
    struct sim_runner runner[SIM_RUNNERS];
};

/* Carry the account on to a moment, which may be past already. */
void sim_turns_advance(struct sim_turns *turns, uint64_t now_ns);

/* Let a process need the GPU for so long from now on. */
void sim_turns_need(struct sim_turns *turns, unsigned runner, uint64_t left_ns);

/* When a process will have had the GPU for so long, if no process's work changes. */
uint64_t sim_turns_end_ns(const struct sim_turns *turns, unsigned runner, uint64_t need_ns);

bool sim_turns_is_busy(const struct sim_turns *turns, unsigned runner);

/* The first from `runner` on that is busy; SIM_RUNNERS: none. */
unsigned sim_turns_next_busy(const struct sim_turns *turns, unsigned runner);

/* Groups with work. */
unsigned sim_turns_groups(const struct sim_turns *turns);

#endif
