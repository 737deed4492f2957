/* The demand of work on a GPU, and how long it takes under given conditions: docs/simulated-gpu.md has the
 * model. Pure: no clock, no shared file, and nothing of CUDA. */
#ifndef SIM_DEMAND_H
#define SIM_DEMAND_H

#include "time/cache.h"
#include "state/state.h"

#define SIM_DEMAND_NUMBERS (sizeof(struct sim_demand) / sizeof(double))
#define SIM_DEMAND_AMOUNTS (offsetof(struct sim_demand, slots) / sizeof(double))

/* What a client of the GPU has of each thing, 0..1. */
struct sim_conditions {
    double slots, l1_hits;
    double missed_hits; /* in L2, of what L1 missed */
    double l2_hits;     /* of what only L2 can serve */
    double fp32, fp64, l2, dram, pcie;
};

/* The cached reads of work: what it touches in L1 on each of its multiprocessors, and in all of L2. */
struct sim_cache_class sim_demand_in_l1(const struct sim_gpu *gpu, const struct sim_demand *demand);
double sim_demand_l1_stream(const struct sim_gpu *gpu, const struct sim_demand *demand);
struct sim_cache_class sim_demand_missed(const struct sim_gpu *gpu, const struct sim_demand *demand,
                                         double l1_hits);
struct sim_cache_class sim_demand_in_l2(const struct sim_demand *demand);

/* The conditions for work of this kind that runs alone. */
struct sim_conditions sim_conditions_alone(const struct sim_gpu *gpu, const struct sim_demand *demand);

/* How long it takes. */
double sim_demand_ns(const struct sim_gpu *gpu, const struct sim_demand *demand,
                     const struct sim_conditions *conditions);

/* What it takes of the GPU's fp32, fp64, L2, memory and bus, each in ns of the whole. */
enum sim_resource { SIM_FP32, SIM_FP64, SIM_L2, SIM_DRAM, SIM_PCIE, SIM_RESOURCES };
void sim_demand_uses(const struct sim_gpu *gpu, const struct sim_demand *demand,
                     const struct sim_conditions *conditions, double use_ns[SIM_RESOURCES]);

/* to += weight · what */
void sim_demand_add(struct sim_demand *to, const struct sim_demand *what, double weight);

/* Add work that takes so long to a queue: amounts as they are, how it stands by its duration. */
void sim_demand_queue(struct sim_demand *to, const struct sim_demand *what, double cost_ns);

#endif
