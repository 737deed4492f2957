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
    bool is_alone;    /* no other job that this one shares with wants the GPU: the budget does not apply */
};

/* Whether a launch may go on. `word` is the limit file's, `own_ns` what this thread has launched and not
 * charged yet, `queued_ns` what of this process is in flight. */
struct pgpu_verdict pgpu_budget_check(int gpu, uint64_t word, uint64_t now_ns, uint64_t own_ns,
                                      uint64_t queued_ns);

/* The budget; below zero is debt. */
int64_t pgpu_budget_left_ns(int gpu);

/* Charge GPU time, or refund it (two's complement). */
void pgpu_budget_charge(int gpu, uint64_t taken_ns);

#endif
