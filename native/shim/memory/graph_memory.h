/* Memory that graphs allocate is charged before a launch or an upload, which is when the driver takes it. */
#ifndef PGPU_SHIM_GRAPH_MEMORY_H
#define PGPU_SHIM_GRAPH_MEMORY_H

#include <stdbool.h>

#include "functions.h"
#include "meter_abi.h"
#include "slice/charge.h"
#include "slice/slice.h"

/* What a graph allocates, by GPU; `ordinal` is the device behind each. */
struct pgpu_graph_footprint {
    uint64_t bytes[PGPU_MAX_GPUS];
    CUdevice ordinal[PGPU_MAX_GPUS];
    uint64_t nodes;   /* including child graphs' nodes, without the child graph nodes themselves */
    uint64_t unfreed; /* 0: the graph frees just what it allocates */
    bool is_outside_lease;
};

/* One launch in progress. */
struct pgpu_graph_use {
    struct pgpu_graph_footprint footprint;
    uint64_t added[PGPU_MAX_GPUS]; /* to what was counted before */
    uint64_t round[PGPU_MAX_GPUS];
    uint64_t stream;
    CUgraphExec graph;
    struct pgpu_charge wait; /* for the device to have room; nothing is charged with it */
};

/* Whether any graph with allocations was made executable in this process. */
extern bool pgpu_graph_memory_is_used __attribute__((visibility("hidden")));

CUresult pgpu_graph_memory_begin(struct pgpu_graph_use *use, CUgraphExec graph, CUstream stream,
                                 bool is_per_thread);
void pgpu_graph_memory_end(const struct pgpu_graph_use *use, CUresult result);

/* The body of a hook that launches or uploads a graph by `call`. */
#define PGPU_USE_GRAPH(graph, stream, is_per_thread, call)                                                   \
    struct pgpu_graph_use use;                                                                               \
    if (__builtin_expect(!__atomic_load_n(&pgpu_graph_memory_is_used, __ATOMIC_RELAXED), 1)) return call;    \
    CUresult result = pgpu_graph_memory_begin(&use, graph, stream, is_per_thread);                           \
    if (result != CUDA_SUCCESS) return result;                                                               \
    do                                                                                                       \
        result = call;                                                                                       \
    while (use.wait.gpu != PGPU_NO_GPU && pgpu_charge_should_retry(&use.wait, result));                      \
    pgpu_graph_memory_end(&use, result);                                                                     \
    return result

#endif
