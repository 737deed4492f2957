/* How much GPU time a job may use now: a budget in measured time for all its processes.
 *
 * Each period of 100 ms adds the job's share of it, and at most two periods' worth is kept. Work is charged
 * by an estimate when it is launched and corrected when it was measured. The budget may go below zero, so a
 * kernel that is longer than the budget is paid back before the next one. */
#ifndef PGPU_SHIM_BUDGET_H
#define PGPU_SHIM_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

#define PGPU_PERIOD_NS 100000000ll

struct pgpu_verdict {
    uint64_t wait_ns; /* 0: launch now; else check again after this time at the latest */
    bool is_alone;    /* no other job that this one shares with wants the GPU */
    bool is_free;     /* the budget does not apply */
};

/* What of this process concerns its budget. */
struct pgpu_backlog {
    uint64_t own_ns;    /* that this thread has launched and not charged yet */
    uint64_t queued_ns; /* in flight */
    uint64_t burst_ns;  /* that may run at once, and is saved for: 0: there are no such launches */
    uint64_t waited_ns; /* for how long this launch has waited */
};

/* Whether a launch may go on. `word` is the limit file's. */
struct pgpu_verdict pgpu_budget_check(int gpu, uint64_t word, uint64_t now_ns,
                                      const struct pgpu_backlog *backlog);

/* The budget; below zero is debt. */
int64_t pgpu_budget_left_ns(int gpu);

/* Charge GPU time, or refund it (two's complement). */
void pgpu_budget_charge(int gpu, uint64_t taken_ns);

#endif
