#include "kernel.h"

#include <string.h>

#define MOST_BLOCKS_PER_SM 32u
/* What the driver keeps of a block's shared memory for itself. */
#define OWN_SHARED_BYTES 1024u

unsigned sim_blocks_per_sm(const struct sim_gpu *gpu, unsigned threads, size_t shared_bytes) {
    if (threads == 0 || threads > SIM_MOST_THREADS) return 0;
    uint64_t blocks = gpu->threads_per_sm / ((threads + 31u) / 32u * 32u);
    uint64_t by_shared =
        shared_bytes == 0 ? blocks : gpu->shared_bytes_per_sm / (shared_bytes + OWN_SHARED_BYTES);
    if (by_shared < blocks) blocks = by_shared;
    return blocks < MOST_BLOCKS_PER_SM ? (unsigned)blocks : MOST_BLOCKS_PER_SM;
}

uint64_t sim_kernel_cost_ns(const struct sim_gpu *gpu, const struct sim_kernel_launch *launch,
                            bool *fills_gpu) {
    const struct sim_cost *cost = &launch->function->cost;
    unsigned threads = launch->block[0] * launch->block[1] * launch->block[2];
    unsigned per_sm = sim_blocks_per_sm(gpu, threads, launch->shared_bytes);
    uint64_t room = gpu->sm_count * (per_sm == 0 ? 1 : per_sm);
    uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    *fills_gpu = 2 * blocks >= room;
    uint64_t waves = room == 0 ? blocks : (blocks + room - 1) / room;
    return cost->fixed_ns + waves * cost->wave_ns + (uint64_t)((double)launch->argument * cost->ns_per_unit);
}

CUresult sim_kernel_check_room(const struct sim_gpu *gpu, struct sim_kernel_launch launch) {
    unsigned threads = launch.block[0] * launch.block[1] * launch.block[2];
    uint64_t room = gpu->sm_count * sim_blocks_per_sm(gpu, threads, launch.shared_bytes);
    uint64_t blocks = (uint64_t)launch.grid[0] * launch.grid[1] * launch.grid[2];
    return blocks > room ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE : CUDA_SUCCESS;
}

static uint64_t read_integer(const void *at, size_t bytes) {
    uint64_t wide = 0;
    uint32_t narrow = 0;
    if (at == NULL) return 0;
    if (bytes == sizeof(wide)) memcpy(&wide, at, sizeof(wide));
    if (bytes == sizeof(narrow)) memcpy(&narrow, at, sizeof(narrow));
    return bytes == sizeof(narrow) ? narrow : wide;
}

/* `extra` is a list of names and values that ends with CU_LAUNCH_PARAM_END. */
static const char *packed_parameters(void **extra) {
    for (; extra != NULL && *extra != CU_LAUNCH_PARAM_END; extra += 2)
        if ((uintptr_t)*extra == CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT) return extra[1];
    return NULL;
}

uint64_t sim_kernel_argument(CUfunction function, void **parameters, void **extra) {
    int index = function->cost.argument;
    if (index < 0 || (unsigned)index >= function->parameter_count) return 0;
    struct sim_parameter parameter = function->parameters[index];
    if (parameters != NULL) return read_integer(parameters[index], parameter.bytes);
    const char *packed = packed_parameters(extra);
    return packed == NULL ? 0 : read_integer(packed + parameter.offset, parameter.bytes);
}
