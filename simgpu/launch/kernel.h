/* The demand of a launch on a GPU, from its shape and its declared cost. */
#ifndef SIM_KERNEL_H
#define SIM_KERNEL_H

#include "time/demand.h"
#include "module/module.h"
#include "stream/work.h"

/* The demand of a launch that has the GPU alone. */
struct sim_kernel_demand {
    struct sim_demand demand;
    uint64_t cost_ns;  /* how long it takes alone */
    uint64_t block_ns; /* how long its blocks stay: before Pascal no other context gets the GPU meanwhile */
    bool fills_gpu;    /* at least half of it */
};

/* `has_bytes`: the managed memory that its context has. */
struct sim_kernel_demand sim_kernel_demand(const struct sim_gpu *gpu, const struct sim_kernel_launch *launch,
                                           CUfunc_cache of_context, uint64_t has_bytes);

/* Blocks of a shape that one multiprocessor holds; 0: none. */
unsigned sim_blocks_per_sm(const struct sim_gpu *gpu, unsigned threads, size_t shared_bytes);

#define SIM_MOST_THREADS 1024u

/* Whether a device holds all of a cooperative launch at once. */
CUresult sim_kernel_check_room(const struct sim_gpu *gpu, struct sim_kernel_launch launch);

/* Between 1 and the most there may be. */
static inline bool sim_is_side(unsigned size, unsigned most) {
    return size - 1u < most;
}

static inline bool sim_is_shape(const unsigned grid[3], const unsigned block[3]) {
    bool is_grid =
        sim_is_side(grid[0], 0x7fffffffu) && sim_is_side(grid[1], 65535u) && sim_is_side(grid[2], 65535u);
    bool is_block =
        sim_is_side(block[0], 1024u) && sim_is_side(block[1], 1024u) && sim_is_side(block[2], 64u);
    return is_grid && is_block && (uint64_t)block[0] * block[1] * block[2] <= SIM_MOST_THREADS;
}

/* Whether a device takes a launch of this shape. On every launch's way, so it is inline. */
static inline CUresult sim_kernel_check(const struct sim_gpu *gpu, const struct sim_kernel_launch *launch) {
    if (!sim_is_shape(launch->grid, launch->block)) return CUDA_ERROR_INVALID_VALUE;
    const int *attribute = launch->function->attribute;
    size_t opted_bytes = (size_t)attribute[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES];
    if (launch->shared_bytes > opted_bytes || launch->shared_bytes > gpu->shared_bytes_per_sm)
        return CUDA_ERROR_INVALID_VALUE;
    return launch->is_cooperative ? sim_kernel_check_room(gpu, *launch) : CUDA_SUCCESS;
}

/* Keep the values of the parameters that the launch's cost depends on. */
void sim_kernel_read_arguments(struct sim_kernel_launch *launch, void **parameters, void **extra);

#endif
