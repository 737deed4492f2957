#include "time/busy_periods.h"

/* A context's turn, as is commonly reported of NVIDIA's default: on a GPU with others the first turn of a
 * burst is charged too much or too little, and only that. */
#define SLICE_NS 2000000u
/* From this length on the phase of the first turn does not matter. */
#define LONG_RUN_NS 40000000u
/* Times of events are rounded, and launches follow each other so soon. */
#define NO_GAP_NS 2000u

void pgpu_busy_period_extend(struct pgpu_busy_period *run, uint64_t from_ns, uint64_t to_ns) {
    if (from_ns > run->to_ns + NO_GAP_NS || to_ns < run->from_ns)
        *run = (struct pgpu_busy_period){.from_ns = from_ns, .to_ns = to_ns};
    if (from_ns < run->from_ns) run->from_ns = from_ns;
    if (to_ns > run->to_ns) run->to_ns = to_ns;
}

/* Our slices until now, each followed by those of others. */
static double own_since_begin(double lasted_ns, double part) {
    double cycle_ns = SLICE_NS / part;
    double cycles = (double)(uint64_t)(lasted_ns / cycle_ns), rest_ns = lasted_ns - cycles * cycle_ns;
    return cycles * SLICE_NS + (rest_ns < SLICE_NS ? rest_ns : SLICE_NS);
}

uint64_t pgpu_busy_period_own_ns(struct pgpu_busy_period *run, uint64_t passed_ns, double part_of_run,
                                 double part_of_batch) {
    uint64_t lasted_ns = run->to_ns - run->from_ns, own_ns = (uint64_t)((double)passed_ns * part_of_batch);
    if (lasted_ns < LONG_RUN_NS) {
        uint64_t all_ns = (uint64_t)own_since_begin((double)lasted_ns, part_of_run);
        own_ns = all_ns > run->own_ns ? all_ns - run->own_ns : 0;
        if (own_ns > passed_ns) own_ns = passed_ns;
    }
    run->own_ns += own_ns;
    return own_ns;
}
