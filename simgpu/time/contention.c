#include "time/contention.h"

/* Rounds until no speed falls any more, and passes until the hits agree with the speeds; two or three of each
 * are enough for most. */
#define ROUNDS     12
#define PASSES     4
#define LEAST_RATE 1e-4

struct client {
    const struct sim_demand *demand;
    double alone_ns, together_ns;
    struct sim_conditions conditions;
};

static double less(double a, double b) {
    return a < b ? a : b;
}

static double more(double a, double b) {
    return a > b ? a : b;
}

/* The level up to which every client is served, so that the sum of `wanted` is at most 1: small demands are
 * met in full, the others get the same. 1 where there is enough for all. */
static double level(const double *wanted, unsigned count) {
    double left = 1;
    unsigned hungry = count;
    bool is_served[SIM_MOST_TOGETHER] = {false};
    for (unsigned round = 0; round < count && hungry > 0; round++) {
        unsigned served = 0;
        double fair = left / hungry;
        for (unsigned i = 0; i < count; i++) {
            if (is_served[i] || wanted[i] > fair) continue;
            is_served[i] = true;
            left -= wanted[i];
            served++;
        }
        hungry -= served;
        if (served == 0) return fair;
    }
    return 1;
}

/* Room for blocks: a client that finds too little has fewer of them resident at once. */
static void share_slots(struct client *client, unsigned count) {
    double wanted[SIM_MOST_TOGETHER] = {0};
    for (unsigned i = 0; i < count; i++)
        wanted[i] = client[i].demand->slots;
    double most = level(wanted, count);
    for (unsigned i = 0; i < count; i++)
        client[i].conditions.slots = wanted[i] > most ? most / wanted[i] : 1;
}

/* The part of a's multiprocessors on which b has blocks too: blocks go where room is. */
static double overlap(const struct client *a, const struct client *b) {
    double common = a->demand->sm_share + b->demand->sm_share - 1;
    return common <= 0 || a->demand->sm_share <= 0 ? 0 : less(1, common / a->demand->sm_share);
}

/* Another client's reads of a cache as they come in one unit of our own work. */
static double pace(const struct client *own, const struct client *other) {
    return other->together_ns > 0 ? own->together_ns / other->together_ns : 0;
}

static void share_l1(const struct sim_gpu *gpu, struct client *client, unsigned count) {
    struct sim_cache_class class[SIM_MOST_TOGETHER];
    for (unsigned i = 0; i < count; i++) {
        double stream_lines = 0;
        for (unsigned j = 0; j < count; j++) {
            const struct sim_demand *demand = client[j].demand;
            double there = i == j ? 1 : overlap(&client[i], &client[j]),
                   weight = there * pace(&client[i], &client[j]);
            class[j] = sim_demand_in_l1(gpu, demand);
            class[j].set_lines *= there * client[j].conditions.slots;
            class[j].touches *= weight;
            stream_lines += weight * sim_demand_l1_stream(gpu, demand);
        }
        sim_cache_share(client[i].demand->l1_bytes / SIM_LINE_BYTES, stream_lines, class, count);
        client[i].conditions.l1_hits = class[i].hits;
    }
}

static void share_l2(const struct sim_gpu *gpu, struct client *client, unsigned count) {
    struct sim_cache_class class[2 * SIM_MOST_TOGETHER];
    double stream_lines = 0;
    for (unsigned i = 0; i < count; i++) {
        const struct sim_demand *demand = client[i].demand;
        double weight = pace(&client[0], &client[i]);
        class[2 * i] = sim_demand_missed(gpu, demand, client[i].conditions.l1_hits);
        class[2 * i + 1] = sim_demand_in_l2(demand);
        for (unsigned part = 0; part < 2; part++) {
            class[2 * i + part].set_lines *= client[i].conditions.slots;
            class[2 * i + part].touches *= weight;
        }
        stream_lines += weight * demand->dram_bytes / SIM_LINE_BYTES;
    }
    sim_cache_share((double)gpu->l2_bytes / SIM_LINE_BYTES, stream_lines, class, 2 * count);
    for (unsigned i = 0; i < count; i++) {
        client[i].conditions.missed_hits = class[2 * i].hits;
        client[i].conditions.l2_hits = class[2 * i + 1].hits;
    }
}

static double *condition(struct sim_conditions *conditions, unsigned resource) {
    double *const of[SIM_RESOURCES] = {&conditions->fp32, &conditions->fp64, &conditions->l2,
                                       &conditions->dram, &conditions->pcie};
    return of[resource];
}

/* A part of each resource for every client, by its demand at the present speeds; true: some speed fell. */
static bool share_resources(const struct sim_gpu *gpu, struct client *client, unsigned count) {
    double use_ns[SIM_MOST_TOGETHER][SIM_RESOURCES], wanted[SIM_MOST_TOGETHER] = {0};
    for (unsigned i = 0; i < count; i++)
        sim_demand_uses(gpu, client[i].demand, &client[i].conditions, use_ns[i]);
    for (unsigned r = 0; r < SIM_RESOURCES; r++) {
        for (unsigned i = 0; i < count; i++)
            wanted[i] = client[i].together_ns > 0 ? use_ns[i][r] / client[i].together_ns : 0;
        double most = level(wanted, count);
        for (unsigned i = 0; i < count; i++)
            *condition(&client[i].conditions, r) = most;
    }
    bool has_changed = false;
    for (unsigned i = 0; i < count; i++) {
        double now_ns = sim_demand_ns(gpu, client[i].demand, &client[i].conditions);
        has_changed |= now_ns > client[i].together_ns * 1.001;
        client[i].together_ns = more(now_ns, client[i].together_ns);
    }
    return has_changed;
}

/* How long each takes with the hits that it has, if everything else is there for it alone. */
static void begin(const struct sim_gpu *gpu, struct client *client, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        for (unsigned r = 0; r < SIM_RESOURCES; r++)
            *condition(&client[i].conditions, r) = 1;
        client[i].together_ns = sim_demand_ns(gpu, client[i].demand, &client[i].conditions);
    }
}

/* Hits depend on each client's read rate, and speeds on the hits. */
static void settle(const struct sim_gpu *gpu, struct client *client, unsigned count) {
    for (unsigned pass = 0; pass < PASSES; pass++) {
        share_l1(gpu, client, count);
        share_l2(gpu, client, count);
        begin(gpu, client, count);
        for (unsigned round = 0; round < ROUNDS && share_resources(gpu, client, count); round++) {
        }
    }
}

void sim_contention_rates(const struct sim_gpu *gpu, const struct sim_demand *demand, unsigned count,
                          double *rate) {
    struct client client[SIM_MOST_TOGETHER];
    for (unsigned i = 0; i < count; i++) {
        client[i] =
            (struct client){.demand = &demand[i], .conditions = sim_conditions_alone(gpu, &demand[i])};
        client[i].alone_ns = client[i].together_ns = sim_demand_ns(gpu, &demand[i], &client[i].conditions);
    }
    share_slots(client, count);
    settle(gpu, client, count);
    for (unsigned i = 0; i < count; i++) {
        double speed = client[i].alone_ns <= 0 ? 1 : client[i].alone_ns / client[i].together_ns;
        rate[i] = more(LEAST_RATE, less(1, speed));
    }
}
