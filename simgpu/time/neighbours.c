#include "time/neighbours.h"

#include <string.h>

#include "time/contention.h"
#include "driver/driver.h"

/* A process that published nothing for so long is skipped. */
#define FORGOTTEN_NS 10000000000ull

static uint64_t load(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

/* Since Pascal a kernel stops anywhere; before, its blocks ended first. */
uint64_t sim_neighbours_window_ns(unsigned gpu) {
    const struct sim_gpu *facts = &sim_driver.config.gpu[gpu];
    const struct sim_activity_slot *slot = &sim_driver.activity->gpu[gpu].slot[sim_driver.slot];
    uint64_t window_ns = facts->time_slice_ns * (sim_driver.slot % 2 == 1 ? facts->unequal_slices : 1);
    uint64_t block_ns = facts->compute_major >= 6 ? 0 : load(&slot->block_ns);
    return block_ns > window_ns ? block_ns : window_ns;
}

/* Clients of our MPS server that have work, with us. */
struct look {
    const struct sim_activity_gpu *activity;
    uint64_t own_server;
    unsigned own_index, together;
    struct sim_demand demand[SIM_MOST_TOGETHER];
};

static void take_slot(struct look *look, const struct sim_turns *turns, unsigned index) {
    const struct sim_activity_slot *slot = &look->activity->slot[index];
    bool is_self = index == sim_driver.slot;
    if (!is_self && (load(&slot->server) != look->own_server || !sim_turns_is_busy(turns, index))) return;
    if (look->together == SIM_MOST_TOGETHER) return;
    if (is_self) look->own_index = look->together;
    memcpy(&look->demand[look->together++], &slot->demand, sizeof(struct sim_demand));
}

static double rate_in_group(unsigned gpu, const struct sim_turns *turns, uint64_t slots) {
    const struct sim_activity_gpu *activity = &sim_driver.activity->gpu[gpu];
    struct look look = {.activity = activity, .own_server = activity->slot[sim_driver.slot].server};
    double rate[SIM_MOST_TOGETHER];
    if (look.own_server == 0) return 1;
    for (unsigned i = 0; i < slots; i++)
        take_slot(&look, turns, i);
    if (look.together < 2) return 1;
    sim_contention_rates(&sim_driver.config.gpu[gpu], look.demand, look.together, rate);
    return rate[look.own_index];
}

static bool has_others(const struct sim_activity_gpu *activity, uint64_t slots, uint64_t now_ns) {
    for (unsigned i = 0; i < slots; i++) {
        uint64_t updated_ns = load(&activity->slot[i].updated_ns);
        if (i != sim_driver.slot && updated_ns != 0 && updated_ns + FORGOTTEN_NS > now_ns) return true;
    }
    return false;
}

static bool has_group_work(const struct sim_turns *turns, uint64_t own_server) {
    for (unsigned at = 0; (at = sim_turns_next_busy(turns, at)) < SIM_RUNNERS; at++)
        if (at == sim_driver.slot || (own_server != 0 && turns->runner[at].server == own_server)) return true;
    return false;
}

/* Ours counts, with work or without. */
static unsigned groups(const struct sim_turns *turns, uint64_t own_server) {
    return sim_turns_groups(turns) + (has_group_work(turns, own_server) ? 0 : 1);
}

struct sim_neighbours sim_neighbours_read(unsigned gpu, const struct sim_turns *turns, uint64_t now_ns) {
    const struct sim_activity_gpu *activity = &sim_driver.activity->gpu[gpu];
    uint64_t slots = load(&activity->slots_used);
    if (slots > PGPU_MAX_SLOTS) slots = PGPU_MAX_SLOTS;
    uint64_t own_server = load(&activity->slot[sim_driver.slot].server);
    return (struct sim_neighbours){rate_in_group(gpu, turns, slots), groups(turns, own_server),
                                   has_others(activity, slots, now_ns)};
}
