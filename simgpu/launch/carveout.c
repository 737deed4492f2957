#include "launch/carveout.h"

#define KIB 1024ull

/* Source: NVIDIA's Volta, Ampere, Ada and Hopper tuning guides; the largest is the GPU's own most. */
static const uint64_t steps[] = {0,         8 * KIB,   16 * KIB,  32 * KIB, 64 * KIB,
                                 100 * KIB, 132 * KIB, 164 * KIB, 196 * KIB};

/* The smallest division with at least so much shared memory. */
static uint64_t round_up(const struct sim_gpu *gpu, uint64_t bytes) {
    for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
        if (steps[i] >= bytes && steps[i] < gpu->shared_bytes_per_sm) return steps[i];
    return gpu->shared_bytes_per_sm;
}

static uint64_t more(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* A wish is a hint: one block always gets what it needs. Without one, all blocks that could be resident do.
 */
uint64_t sim_carveout_shared_bytes(const struct sim_gpu *gpu, const struct sim_carveout *carveout) {
    if (gpu->unified_l1_bytes_per_sm == 0) return gpu->shared_bytes_per_sm;
    if (carveout->percent == SIM_NO_CARVEOUT)
        return round_up(gpu, carveout->block_bytes * carveout->wanted_blocks);
    uint64_t wished_bytes = gpu->shared_bytes_per_sm * (unsigned)carveout->percent / 100;
    return round_up(gpu, more(wished_bytes, carveout->block_bytes));
}

uint64_t sim_carveout_l1_bytes(const struct sim_gpu *gpu, uint64_t shared_bytes) {
    return gpu->unified_l1_bytes_per_sm > shared_bytes ? gpu->unified_l1_bytes_per_sm - shared_bytes : 0;
}
