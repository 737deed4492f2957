/* How a multiprocessor's memory is divided between L1 and shared memory for a kernel. Pure. */
#ifndef SIM_CARVEOUT_H
#define SIM_CARVEOUT_H

#include "state/state.h"

#define SIM_NO_CARVEOUT (-1)

/* A launch's requirement and its author's preference. */
struct sim_carveout {
    uint64_t block_bytes;   /* shared memory of one block, the driver's own part included; 0: none */
    uint64_t wanted_blocks; /* that would be resident if shared memory allowed */
    int percent;            /* of the most shared memory: 0..100, or SIM_NO_CARVEOUT */
};

/* Shared memory that a multiprocessor gets; the rest is L1. */
uint64_t sim_carveout_shared_bytes(const struct sim_gpu *gpu, const struct sim_carveout *carveout);

/* L1 for loads from global memory beside it; 0 where L1 does not cache them. */
uint64_t sim_carveout_l1_bytes(const struct sim_gpu *gpu, uint64_t shared_bytes);

#endif
