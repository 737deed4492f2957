#include "launch/kernel.h"

#include <string.h>

#include "launch/carveout.h"
#include "mps/mps.h"

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

static int percent_of(CUfunc_cache cache) {
    switch (cache) {
    case CU_FUNC_CACHE_PREFER_SHARED:
        return 100;
    case CU_FUNC_CACHE_PREFER_L1:
        return 0;
    case CU_FUNC_CACHE_PREFER_EQUAL:
        return 50;
    default:
        return SIM_NO_CARVEOUT;
    }
}

/* The function's own wish for a carve-out, then its cache configuration, then its context's. */
static int wished_percent(CUfunction function, CUfunc_cache of_context) {
    int percent = function->attribute[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT];
    if (percent >= 0 && percent <= 100) return percent;
    return percent_of(function->cache != CU_FUNC_CACHE_PREFER_NONE ? function->cache : of_context);
}

/* How a launch lies on the GPU. */
struct shape {
    double threads, blocks, waves;
    double resident_blocks, sms; /* at once, and on how many multiprocessors */
    double per_sm;               /* blocks that one could hold */
    double l1_bytes;
};

static struct shape shape_of(const struct sim_gpu *gpu, const struct sim_kernel_launch *launch,
                             CUfunc_cache of_context) {
    unsigned threads = launch->block[0] * launch->block[1] * launch->block[2];
    unsigned wanted = sim_blocks_per_sm(gpu, threads, 0);
    uint64_t block_bytes = launch->shared_bytes == 0 ? 0 : launch->shared_bytes + OWN_SHARED_BYTES;
    struct sim_carveout carveout = {.block_bytes = block_bytes,
                                    .wanted_blocks = wanted,
                                    .percent = wished_percent(launch->function, of_context)};
    uint64_t shared_bytes = sim_carveout_shared_bytes(gpu, &carveout);
    uint64_t per_sm = block_bytes == 0 ? wanted : shared_bytes / block_bytes;
    per_sm = per_sm > wanted ? wanted : per_sm == 0 ? 1 : per_sm;
    uint64_t sms = sim_mps_sm_count(gpu), room = sms * per_sm;
    uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    return (struct shape){.threads = (double)blocks * threads,
                          .blocks = (double)blocks,
                          .waves = (double)((blocks + room - 1) / room),
                          .resident_blocks = (double)(blocks < room ? blocks : room),
                          .sms = (double)(blocks < sms ? blocks : sms),
                          .per_sm = (double)per_sm,
                          .l1_bytes = (double)sim_carveout_l1_bytes(gpu, shared_bytes)};
}

static double value(const struct sim_kernel_launch *launch, const struct sim_cost_input *input,
                    enum sim_quantity quantity) {
    return sim_cost_value(launch->function->cost, quantity, input);
}

static void add_arithmetic(struct sim_demand *demand, const struct sim_gpu *gpu, const struct shape *shape,
                           double flop, double flop64) {
    /* A lane does a multiply-add in each clock, and a thread is on one lane at a time. */
    double lane_ns = 1e6 / (double)gpu->clock_khz / 2;
    double sms = (double)gpu->sm_count,
           threads = shape->resident_blocks / shape->sms * shape->threads / shape->blocks;
    double lanes = (double)gpu->fp32_lanes_per_sm, lanes64 = (double)gpu->fp64_lanes_per_sm;
    demand->fp32_ns = shape->threads * flop * lane_ns / (sms * lanes);
    demand->fp64_ns = shape->threads * flop64 * lane_ns / (sms * lanes64);
    double own = shape->threads * flop / (threads < lanes ? threads : lanes);
    double own64 = shape->threads * flop64 / (threads < lanes64 ? threads : lanes64);
    demand->arithmetic_ns = (own > own64 ? own : own64) * lane_ns / shape->sms;
}

/* Accesses wait where their bytes are served. */
static void add_waits(struct sim_demand *demand, double waits) {
    double bytes = demand->dram_bytes + demand->l1_read_bytes + demand->l2_read_bytes;
    if (bytes <= 0) {
        demand->l1_waits = waits;
        return;
    }
    demand->l1_waits = waits * demand->l1_read_bytes / bytes;
    demand->l2_waits = waits * demand->l2_read_bytes / bytes;
    demand->dram_waits = waits * demand->dram_bytes / bytes;
}

static struct sim_demand demand_of(const struct sim_gpu *gpu, const struct sim_kernel_launch *launch,
                                   const struct shape *shape, const struct sim_cost_input *input) {
    double per_block = shape->threads / shape->blocks, per_sm = shape->resident_blocks / shape->sms;
    struct sim_demand demand = {
        .fixed_ns = value(launch, input, SIM_FIXED_NS) + shape->waves * value(launch, input, SIM_WAVE_NS),
        .dram_bytes = shape->threads * value(launch, input, SIM_DRAM_BYTES),
        .l1_read_bytes = shape->threads * value(launch, input, SIM_L1_READS),
        .l2_read_bytes = shape->threads * value(launch, input, SIM_L2_READS),
        .slots = shape->resident_blocks / ((double)gpu->sm_count * shape->per_sm),
        .sm_share = shape->sms / (double)gpu->sm_count,
        .l1_bytes = shape->l1_bytes,
        .l1_set_bytes = per_sm * (per_block * value(launch, input, SIM_L1_BYTES) +
                                  value(launch, input, SIM_L1_BLOCK_BYTES)),
        .l2_set_bytes = shape->resident_blocks * per_block * value(launch, input, SIM_L2_BYTES) +
                        value(launch, input, SIM_L2_TOTAL_BYTES)};
    add_arithmetic(&demand, gpu, shape, value(launch, input, SIM_FLOP), value(launch, input, SIM_FLOP64));
    add_waits(&demand, shape->waves * value(launch, input, SIM_ACCESSES));
    return demand;
}

static double touched_bytes(const struct sim_kernel_launch *launch, const struct sim_cost_input *input,
                            uint64_t has_bytes) {
    double named_bytes = value(launch, input, SIM_MANAGED_BYTES);
    bool is_named = launch->function->cost->names_managed && named_bytes < (double)has_bytes;
    return is_named ? named_bytes : (double)has_bytes;
}

struct sim_kernel_demand sim_kernel_demand(const struct sim_gpu *gpu, const struct sim_kernel_launch *launch,
                                           CUfunc_cache of_context, uint64_t has_bytes) {
    /* Its module may be gone by the time that a graph or a host function comes to it. */
    if (!sim_is_function(launch->function)) return (struct sim_kernel_demand){0};
    struct shape shape = shape_of(gpu, launch, of_context);
    struct sim_cost_input input = {
        .threads = shape.threads, .blocks = shape.blocks, .argument = launch->argument};
    struct sim_kernel_demand kernel = {.demand = demand_of(gpu, launch, &shape, &input)};
    struct sim_conditions alone = sim_conditions_alone(gpu, &kernel.demand);
    kernel.cost_ns = (uint64_t)sim_demand_ns(gpu, &kernel.demand, &alone);
    kernel.block_ns = (uint64_t)((double)kernel.cost_ns / shape.waves);
    kernel.fills_gpu = 2 * shape.blocks >= (double)sim_mps_sm_count(gpu) * shape.per_sm;
    kernel.demand.managed_bytes = kernel.demand.managed_set_bytes = touched_bytes(launch, &input, has_bytes);
    return kernel;
}

CUresult sim_kernel_check_room(const struct sim_gpu *gpu, struct sim_kernel_launch launch) {
    unsigned threads = launch.block[0] * launch.block[1] * launch.block[2];
    uint64_t room = sim_mps_sm_count(gpu) * sim_blocks_per_sm(gpu, threads, launch.shared_bytes);
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

static uint64_t argument(const struct CUfunc_st *function, unsigned index, void **parameters,
                         const char *packed) {
    if (index >= function->parameter_count) return 0;
    struct sim_parameter parameter = function->parameters[index];
    if (parameters != NULL) return read_integer(parameters[index], parameter.bytes);
    return packed == NULL ? 0 : read_integer(packed + parameter.offset, parameter.bytes);
}

void sim_kernel_read_arguments(struct sim_kernel_launch *launch, void **parameters, void **extra) {
    const struct CUfunc_st *function = launch->function;
    const char *packed = packed_parameters(extra);
    for (unsigned i = 0; i < function->cost->argument_count; i++)
        launch->argument[i] = argument(function, function->cost->argument[i], parameters, packed);
}
