/* Kernels and graphs on their way to the driver. */
#include "functions.h"
#include "memory/graph_memory.h"
#include "time/gate.h"

#define LAUNCH(function, ...)                                                                                \
    do {                                                                                                     \
        CUresult result = pgpu_gate_before(&work);                                                           \
        if (result == CUDA_SUCCESS) result = PGPU_REAL(function)(__VA_ARGS__);                               \
        pgpu_gate_after(&work, result);                                                                      \
        return result;                                                                                       \
    } while (0)

/* Field by field: clearing the whole structure would cost more than the rest of the hook. */
#define KERNEL(in_stream, of_thread, what, bytes_shared)                                                     \
    struct pgpu_work work;                                                                                   \
    work.graph = NULL;                                                                                       \
    work.command.kind = PGPU_TRACE_KERNEL;                                                                   \
    work.command.stream = (in_stream);                                                                       \
    work.command.is_per_thread = (of_thread);                                                                \
    work.command.function = (what);                                                                          \
    work.command.grid[0] = grid_x;                                                                           \
    work.command.grid[1] = grid_y;                                                                           \
    work.command.grid[2] = grid_z;                                                                           \
    work.command.block[0] = block_x;                                                                         \
    work.command.block[1] = block_y;                                                                         \
    work.command.block[2] = block_z;                                                                         \
    work.command.shared_bytes = (bytes_shared);                                                              \
    work.command.bytes = 0;                                                                                  \
    work.command.detail = 0

#define SHAPE                                                                                                \
    unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,                     \
        unsigned int block_y, unsigned int block_z, unsigned int shared_bytes
#define SHAPE_GIVEN grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes

PGPU_EXPORT CUresult cuLaunchKernel(CUfunction function, SHAPE, CUstream stream, void **parameters,
                                    void **extra) {
    if (pgpu_gate_lets(function))
        return PGPU_REAL(cuLaunchKernel)(function, SHAPE_GIVEN, stream, parameters, extra);
    KERNEL(stream, false, function, shared_bytes);
    LAUNCH(cuLaunchKernel, function, SHAPE_GIVEN, stream, parameters, extra);
}

PGPU_EXPORT CUresult cuLaunchKernel_ptsz(CUfunction function, SHAPE, CUstream stream, void **parameters,
                                         void **extra) {
    if (pgpu_gate_lets(function))
        return PGPU_REAL(cuLaunchKernel_ptsz)(function, SHAPE_GIVEN, stream, parameters, extra);
    KERNEL(stream, true, function, shared_bytes);
    LAUNCH(cuLaunchKernel_ptsz, function, SHAPE_GIVEN, stream, parameters, extra);
}

PGPU_EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, SHAPE, CUstream stream,
                                               void **parameters) {
    if (pgpu_gate_lets(function))
        return PGPU_REAL(cuLaunchCooperativeKernel)(function, SHAPE_GIVEN, stream, parameters);
    KERNEL(stream, false, function, shared_bytes);
    LAUNCH(cuLaunchCooperativeKernel, function, SHAPE_GIVEN, stream, parameters);
}

PGPU_EXPORT CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, SHAPE, CUstream stream,
                                                    void **parameters) {
    if (pgpu_gate_lets(function))
        return PGPU_REAL(cuLaunchCooperativeKernel_ptsz)(function, SHAPE_GIVEN, stream, parameters);
    KERNEL(stream, true, function, shared_bytes);
    LAUNCH(cuLaunchCooperativeKernel_ptsz, function, SHAPE_GIVEN, stream, parameters);
}

/* For a missing configuration the driver returns its own error. */
static struct pgpu_work configured(const CUlaunchConfig *config, CUfunction function, bool is_per_thread) {
    return (struct pgpu_work){.command = {.kind = PGPU_TRACE_KERNEL,
                                          .stream = config->hStream,
                                          .is_per_thread = is_per_thread,
                                          .function = function,
                                          .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                                          .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
                                          .shared_bytes = config->sharedMemBytes}};
}

PGPU_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
                                      void **extra) {
    if (config == NULL || pgpu_gate_lets(function))
        return PGPU_REAL(cuLaunchKernelEx)(config, function, parameters, extra);
    struct pgpu_work work = configured(config, function, false);
    LAUNCH(cuLaunchKernelEx, config, function, parameters, extra);
}

PGPU_EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function,
                                           void **parameters, void **extra) {
    if (config == NULL || pgpu_gate_lets(function))
        return PGPU_REAL(cuLaunchKernelEx_ptsz)(config, function, parameters, extra);
    struct pgpu_work work = configured(config, function, true);
    LAUNCH(cuLaunchKernelEx_ptsz, config, function, parameters, extra);
}

/* CUDA 2's launches: the shape of a block is a property of the function. */
static struct pgpu_work first_api(CUfunction function, int width, int height, CUstream stream) {
    return (struct pgpu_work){.command = {.kind = PGPU_TRACE_KERNEL,
                                          .stream = stream,
                                          .function = function,
                                          .grid = {(uint32_t)width, (uint32_t)height, 1}}};
}

PGPU_EXPORT CUresult cuLaunch(CUfunction function) {
    if (pgpu_gate_lets(function)) return PGPU_REAL(cuLaunch)(function);
    struct pgpu_work work = first_api(function, 1, 1, NULL);
    LAUNCH(cuLaunch, function);
}

PGPU_EXPORT CUresult cuLaunchGrid(CUfunction function, int width, int height) {
    if (pgpu_gate_lets(function)) return PGPU_REAL(cuLaunchGrid)(function, width, height);
    struct pgpu_work work = first_api(function, width, height, NULL);
    LAUNCH(cuLaunchGrid, function, width, height);
}

PGPU_EXPORT CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
    if (pgpu_gate_lets(function)) return PGPU_REAL(cuLaunchGridAsync)(function, width, height, stream);
    struct pgpu_work work = first_api(function, width, height, stream);
    LAUNCH(cuLaunchGridAsync, function, width, height, stream);
}

static CUresult launch_graph(CUgraphExec graph, CUstream stream) {
    if (pgpu_gate_is_open()) return PGPU_REAL(cuGraphLaunch)(graph, stream);
    struct pgpu_work work = {.command = {.kind = PGPU_TRACE_GRAPH, .stream = stream}, .graph = graph};
    LAUNCH(cuGraphLaunch, graph, stream);
}

PGPU_EXPORT CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
    PGPU_USE_GRAPH(graph, stream, false, launch_graph(graph, stream));
}

static CUresult launch_graph_ptsz(CUgraphExec graph, CUstream stream) {
    if (pgpu_gate_is_open()) return PGPU_REAL(cuGraphLaunch_ptsz)(graph, stream);
    struct pgpu_work work = {.command = {.kind = PGPU_TRACE_GRAPH, .stream = stream, .is_per_thread = true},
                             .graph = graph};
    LAUNCH(cuGraphLaunch_ptsz, graph, stream);
}

PGPU_EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) {
    PGPU_USE_GRAPH(graph, stream, true, launch_graph_ptsz(graph, stream));
}

static struct pgpu_work of_team(const CUDA_LAUNCH_PARAMS *member) {
    return (struct pgpu_work){.command = {.kind = PGPU_TRACE_KERNEL,
                                          .stream = member->hStream,
                                          .function = member->function,
                                          .grid = {member->gridDimX, member->gridDimY, member->gridDimZ},
                                          .block = {member->blockDimX, member->blockDimY, member->blockDimZ},
                                          .shared_bytes = member->sharedMemBytes}};
}

/* More than a machine has GPUs; the driver itself refuses more. */
#define MOST_OF_TEAM 64u

/* Each waits for its GPU in turn; then all are launched. */
PGPU_EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *team, unsigned int count,
                                                          unsigned int flags) {
    struct pgpu_work works[MOST_OF_TEAM];
    CUresult result = CUDA_SUCCESS;
    if (team == NULL || count > MOST_OF_TEAM || pgpu_gate_is_open())
        return PGPU_REAL(cuLaunchCooperativeKernelMultiDevice)(team, count, flags);
    unsigned entered = 0;
    for (; entered < count && result == CUDA_SUCCESS; entered++) {
        works[entered] = of_team(&team[entered]);
        result = pgpu_gate_before(&works[entered]);
    }
    if (result == CUDA_SUCCESS) result = PGPU_REAL(cuLaunchCooperativeKernelMultiDevice)(team, count, flags);
    for (unsigned member = 0; member < entered; member++)
        pgpu_gate_after(&works[member], result);
    return result;
}

/* A program that polls for completion closes its batches, so that they are measured even if it never waits.
 */
#define QUERY(function, type)                                                                                \
    PGPU_EXPORT CUresult function(type handle) {                                                             \
        pgpu_gate_before_synchronisation();                                                                  \
        CUresult result = PGPU_REAL(function)(handle);                                                       \
        if (result == CUDA_SUCCESS) pgpu_gate_after_synchronisation();                                       \
        return result;                                                                                       \
    }

QUERY(cuStreamQuery, CUstream)
QUERY(cuStreamQuery_ptsz, CUstream)
QUERY(cuEventQuery, CUevent)
