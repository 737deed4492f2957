#include "time/demand.h"

#include <string.h>

_Static_assert(sizeof(struct sim_demand) == 18 * sizeof(double), "a demand is a vector of doubles");

/* Eleven days: what takes longer, or needs a resource that the GPU does not have, never ends in practice. */
#define MOST_NS 1e15
/* A multiprocessor takes so many bytes from L2 in a clock (Volta tuning guide and later: 64). */
#define L2_BYTES_PER_SM_CLOCK 64.0

static double cycles_ns(const struct sim_gpu *gpu, double cycles) {
    return cycles * 1e6 / (double)gpu->clock_khz;
}

static double per_ns(uint64_t bytes_per_second) {
    return (double)bytes_per_second / 1e9;
}

static double sms(const struct sim_gpu *gpu, const struct sim_demand *demand) {
    return demand->sm_share * (double)gpu->sm_count;
}

struct sim_cache_class sim_demand_in_l1(const struct sim_gpu *gpu, const struct sim_demand *demand) {
    double on = sms(gpu, demand);
    return (struct sim_cache_class){.set_lines = demand->l1_set_bytes / SIM_LINE_BYTES,
                                    .touches = on > 0 ? demand->l1_read_bytes / SIM_SECTOR_BYTES / on : 0};
}

double sim_demand_l1_stream(const struct sim_gpu *gpu, const struct sim_demand *demand) {
    double on = sms(gpu, demand);
    return on > 0 ? (demand->dram_bytes + demand->l2_read_bytes) / SIM_LINE_BYTES / on : 0;
}

struct sim_cache_class sim_demand_missed(const struct sim_gpu *gpu, const struct sim_demand *demand,
                                         double l1_hits) {
    return (struct sim_cache_class){.set_lines = demand->l1_set_bytes * sms(gpu, demand) / SIM_LINE_BYTES,
                                    .touches = demand->l1_read_bytes * (1 - l1_hits) / SIM_SECTOR_BYTES};
}

struct sim_cache_class sim_demand_in_l2(const struct sim_demand *demand) {
    return (struct sim_cache_class){.set_lines = demand->l2_set_bytes / SIM_LINE_BYTES,
                                    .touches = demand->l2_read_bytes / SIM_LINE_BYTES};
}

struct sim_conditions sim_conditions_alone(const struct sim_gpu *gpu, const struct sim_demand *demand) {
    struct sim_conditions alone = {.slots = 1, .fp32 = 1, .fp64 = 1, .l2 = 1, .dram = 1, .pcie = 1};
    if (demand->l1_read_bytes <= 0 && demand->l2_read_bytes <= 0) return alone;
    struct sim_cache_class l1 = sim_demand_in_l1(gpu, demand);
    sim_cache_share(demand->l1_bytes / SIM_LINE_BYTES, sim_demand_l1_stream(gpu, demand), &l1, 1);
    struct sim_cache_class l2[] = {sim_demand_missed(gpu, demand, l1.hits), sim_demand_in_l2(demand)};
    sim_cache_share((double)gpu->l2_bytes / SIM_LINE_BYTES, demand->dram_bytes / SIM_LINE_BYTES, l2, 2);
    alone.l1_hits = l1.hits;
    alone.missed_hits = l2[0].hits;
    alone.l2_hits = l2[1].hits;
    return alone;
}

/* Bytes that come out of L2, and of memory. */
struct traffic {
    double l2_bytes, dram_bytes;
};

static struct traffic traffic_of(const struct sim_demand *demand, const struct sim_conditions *conditions) {
    double missed_bytes = demand->l1_read_bytes * (1 - conditions->l1_hits);
    return (struct traffic){.l2_bytes = demand->dram_bytes + demand->l2_read_bytes + missed_bytes,
                            .dram_bytes = demand->dram_bytes +
                                          demand->l2_read_bytes * (1 - conditions->l2_hits) +
                                          missed_bytes * (1 - conditions->missed_hits)};
}

/* Time of its dependent accesses. */
static double waiting_ns(const struct sim_gpu *gpu, const struct sim_demand *demand,
                         const struct sim_conditions *conditions) {
    double dram_ns = cycles_ns(gpu, (double)gpu->memory_latency_cycles);
    double less_ns = dram_ns - cycles_ns(gpu, (double)gpu->l2_latency_cycles);
    double missed_ns = dram_ns - conditions->missed_hits * less_ns;
    double l1_ns = conditions->l1_hits * cycles_ns(gpu, (double)gpu->l1_latency_cycles) +
                   (1 - conditions->l1_hits) * missed_ns;
    return demand->l1_waits * l1_ns + demand->l2_waits * (dram_ns - conditions->l2_hits * less_ns) +
           demand->dram_waits * dram_ns;
}

static double more(double a, double b) {
    return a > b ? a : b;
}

void sim_demand_uses(const struct sim_gpu *gpu, const struct sim_demand *demand,
                     const struct sim_conditions *conditions, double use_ns[SIM_RESOURCES]) {
    struct traffic traffic = traffic_of(demand, conditions);
    use_ns[SIM_FP32] = demand->fp32_ns;
    use_ns[SIM_FP64] = demand->fp64_ns;
    use_ns[SIM_L2] = traffic.l2_bytes / per_ns(gpu->l2_bytes_per_second);
    use_ns[SIM_DRAM] = traffic.dram_bytes / per_ns(gpu->bandwidth_bytes_per_second);
    use_ns[SIM_PCIE] = demand->pcie_ns;
}

/* The bound by its own threads and multiprocessors, independent of other clients. */
static double own_ns(const struct sim_gpu *gpu, const struct sim_demand *demand,
                     const struct sim_conditions *conditions) {
    double port_bytes_per_ns = sms(gpu, demand) * L2_BYTES_PER_SM_CLOCK * (double)gpu->clock_khz / 1e6;
    double port_ns = port_bytes_per_ns > 0 ? traffic_of(demand, conditions).l2_bytes / port_bytes_per_ns : 0;
    return more(port_ns, more(demand->arithmetic_ns, waiting_ns(gpu, demand, conditions)));
}

double sim_demand_ns(const struct sim_gpu *gpu, const struct sim_demand *demand,
                     const struct sim_conditions *conditions) {
    const double had[SIM_RESOURCES] = {conditions->fp32, conditions->fp64, conditions->l2, conditions->dram,
                                       conditions->pcie};
    double use_ns[SIM_RESOURCES];
    sim_demand_uses(gpu, demand, conditions, use_ns);
    double longest_ns = own_ns(gpu, demand, conditions) / conditions->slots;
    for (unsigned i = 0; i < SIM_RESOURCES; i++)
        longest_ns = more(longest_ns, use_ns[i] / had[i]);
    double all_ns = demand->fixed_ns / conditions->slots + longest_ns;
    return all_ns < MOST_NS ? all_ns : MOST_NS;
}

void sim_demand_add(struct sim_demand *to, const struct sim_demand *what, double weight) {
    double sum[SIM_DEMAND_NUMBERS], added[SIM_DEMAND_NUMBERS];
    memcpy(sum, to, sizeof(sum));
    memcpy(added, what, sizeof(added));
    for (unsigned i = 0; i < SIM_DEMAND_NUMBERS; i++)
        sum[i] += weight * added[i];
    memcpy(to, sum, sizeof(sum));
}

void sim_demand_queue(struct sim_demand *to, const struct sim_demand *what, double cost_ns) {
    struct sim_demand weighted = *what;
    weighted.slots *= cost_ns;
    weighted.sm_share *= cost_ns;
    weighted.l1_bytes *= cost_ns;
    weighted.l1_set_bytes *= cost_ns;
    weighted.l2_set_bytes *= cost_ns;
    weighted.managed_set_bytes *= cost_ns;
    sim_demand_add(to, &weighted, 1);
}
