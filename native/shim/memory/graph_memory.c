/* Memory that graphs allocate: the sum of a graph's allocation nodes is charged when the graph is made
 * executable.
 *
 * The driver lets nodes that never live together share memory, so the sum may be too high; a lower charge
 * could let a launch exceed the slice, and a launch cannot be refused halfway. */
#include <stdlib.h>

#include "slice/charge.h"
#include "functions.h"
#include "memory/pools.h"
#include "slice/slice.h"
#include "trace/trace.h"
#include "memory/vmm.h"

#define MAX_NESTING 32

/* What a graph allocates, by GPU; `ordinal` is the device behind each. */
struct footprint {
    uint64_t bytes[PGPU_MAX_GPUS];
    CUdevice ordinal[PGPU_MAX_GPUS];
    uint64_t nodes; /* including child graphs' nodes, without the child graph nodes themselves */
    bool is_outside_lease;
};

static void add_allocation(CUgraphNode node, struct footprint *footprint) {
    CUDA_MEM_ALLOC_NODE_PARAMS wanted;
    if (PGPU_REAL(cuGraphMemAllocNodeGetParams)(node, &wanted) != CUDA_SUCCESS) return;
    if (!pgpu_vmm_is_charged(&wanted.poolProps.location)) return;
    CUdevice ordinal = pgpu_vmm_ordinal_of(&wanted.poolProps.location);
    int gpu = pgpu_slice_gpu_of(ordinal);
    footprint->is_outside_lease |= gpu == PGPU_NO_GPU;
    if (gpu == PGPU_NO_GPU) return;
    footprint->bytes[gpu] += pgpu_slice_granule(wanted.bytesize);
    footprint->ordinal[gpu] = ordinal;
}

static void add_graph(CUgraph graph, struct footprint *footprint, int depth);

static void add_node(CUgraphNode node, struct footprint *footprint, int depth) {
    CUgraphNodeType type;
    CUgraph child;
    if (PGPU_REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS) return;
    footprint->nodes += type != CU_GRAPH_NODE_TYPE_GRAPH;
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) add_allocation(node, footprint);
    if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
        PGPU_REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS)
        add_graph(child, footprint, depth + 1);
}

static void add_graph(CUgraph graph, struct footprint *footprint, int depth) {
    size_t count = 0;
    if (depth > MAX_NESTING || PGPU_REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return;
    CUgraphNode *nodes = malloc(count * sizeof(*nodes));
    if (nodes != NULL && PGPU_REAL(cuGraphGetNodes)(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t at = 0; at < count; at++)
            add_node(nodes[at], footprint, depth);
    free(nodes);
}

static void give_back(const struct footprint *footprint, int gpus) {
    for (int gpu = 0; gpu < gpus; gpu++) {
        if (footprint->bytes[gpu] == 0) continue;
        uint64_t pool = pgpu_pools_graph_key(footprint->ordinal[gpu]);
        pgpu_pools_give(pool, footprint->bytes[gpu]);
        pgpu_pools_settle_one(pool);
    }
}

/* The remaining allocations of a destroyed graph have no row of their own, so the driver is queried first. */
static CUresult take_on(int gpu, CUdevice ordinal, uint64_t bytes) {
    struct pgpu_charge charge;
    uint64_t pool = pgpu_pools_graph_key(ordinal);
    pgpu_pools_settle_one(pool);
    CUresult result = pgpu_pools_confirm(pool, gpu);
    return result == CUDA_SUCCESS ? pgpu_pools_take(pool, gpu, bytes, &charge) : result;
}

static CUresult take(const struct footprint *footprint) {
    if (footprint->is_outside_lease) return CUDA_ERROR_NOT_PERMITTED;
    for (int gpu = 0; gpu < (int)PGPU_MAX_GPUS; gpu++) {
        if (footprint->bytes[gpu] == 0) continue;
        CUresult result = take_on(gpu, footprint->ordinal[gpu], footprint->bytes[gpu]);
        if (result == CUDA_SUCCESS) continue;
        give_back(footprint, gpu);
        return result;
    }
    return CUDA_SUCCESS;
}

/* Allocations that a graph made and did not free outlive it. */
static void leave(const struct footprint *footprint) {
    for (int gpu = 0; gpu < (int)PGPU_MAX_GPUS; gpu++) {
        if (footprint->bytes[gpu] == 0) continue;
        uint64_t pool = pgpu_pools_graph_key(footprint->ordinal[gpu]);
        pgpu_pools_orphan(pool, footprint->bytes[gpu]);
        pgpu_pools_settle_one(pool);
    }
}

/* One row for each GPU that an executable graph allocates on; handles leave the upper byte free. */
static uint64_t key_of(CUgraphExec graph, int gpu) {
    return (uint64_t)graph ^ ((uint64_t)gpu << 56);
}

static void note(CUgraphExec graph, const struct footprint *footprint) {
    for (int gpu = 0; gpu < (int)PGPU_MAX_GPUS; gpu++) {
        struct pgpu_holding row = {.key = key_of(graph, gpu),
                                   .detail = (uint64_t)footprint->ordinal[gpu],
                                   .bytes = footprint->bytes[gpu],
                                   .count = 1,
                                   .kind = PGPU_KIND_GRAPH,
                                   .gpu = (int8_t)gpu};
        if (row.bytes != 0) pgpu_holdings_put(&row);
    }
}

/* For a trace of its launches. */
static void note_nodes(CUgraphExec graph, const struct footprint *footprint) {
    struct pgpu_holding row = {
        .key = (uint64_t)graph, .detail = footprint->nodes, .count = 1, .kind = PGPU_KIND_NODES, .gpu = -1};
    if (pgpu_trace_is_on()) pgpu_holdings_put(&row);
}

uint64_t pgpu_trace_nodes_of(CUgraphExec graph) {
    struct pgpu_holding row;
    return pgpu_holdings_find(PGPU_KIND_NODES, (uint64_t)graph, &row) ? row.detail : 0;
}

#define INSTANTIATE(executable, graph, call)                                                                 \
    struct footprint footprint = {0};                                                                        \
    add_graph(graph, &footprint, 0);                                                                         \
    CUresult result = take(&footprint);                                                                      \
    if (result != CUDA_SUCCESS) return result;                                                               \
    result = call;                                                                                           \
    if (result == CUDA_SUCCESS) {                                                                            \
        note(*(executable), &footprint);                                                                     \
        note_nodes(*(executable), &footprint);                                                               \
    } else {                                                                                                 \
        give_back(&footprint, PGPU_MAX_GPUS);                                                                \
    }                                                                                                        \
    return result

PGPU_EXPORT CUresult cuGraphInstantiate(CUgraphExec *executable, CUgraph graph, CUgraphNode *error_node,
                                        char *log, size_t log_bytes) {
    INSTANTIATE(executable, graph,
                PGPU_REAL(cuGraphInstantiate)(executable, graph, error_node, log, log_bytes));
}

PGPU_EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *executable, CUgraph graph, CUgraphNode *error_node,
                                           char *log, size_t log_bytes) {
    INSTANTIATE(executable, graph,
                PGPU_REAL(cuGraphInstantiate_v2)(executable, graph, error_node, log, log_bytes));
}

PGPU_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph,
                                                 unsigned long long flags) {
    INSTANTIATE(executable, graph, PGPU_REAL(cuGraphInstantiateWithFlags)(executable, graph, flags));
}

PGPU_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *executable, CUgraph graph,
                                                  CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    INSTANTIATE(executable, graph, PGPU_REAL(cuGraphInstantiateWithParams)(executable, graph, parameters));
}

PGPU_EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *executable, CUgraph graph,
                                                       CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    INSTANTIATE(executable, graph,
                PGPU_REAL(cuGraphInstantiateWithParams_ptsz)(executable, graph, parameters));
}

/* The rows of an executable graph, moved out of the table. */
static void take_rows(CUgraphExec graph, struct footprint *footprint) {
    for (int gpu = 0; gpu < (int)PGPU_MAX_GPUS; gpu++) {
        struct pgpu_holding row;
        if (!pgpu_holdings_take(PGPU_KIND_GRAPH, key_of(graph, gpu), &row)) continue;
        footprint->bytes[gpu] = row.bytes;
        footprint->ordinal[gpu] = (CUdevice)row.detail;
    }
}

PGPU_EXPORT CUresult cuGraphExecDestroy(CUgraphExec graph) {
    struct footprint footprint = {0};
    struct pgpu_holding nodes;
    take_rows(graph, &footprint);
    if (pgpu_trace_is_on()) pgpu_holdings_take(PGPU_KIND_NODES, (uint64_t)graph, &nodes);
    CUresult result = PGPU_REAL(cuGraphExecDestroy)(graph);
    if (result == CUDA_SUCCESS)
        leave(&footprint);
    else
        note(graph, &footprint);
    return result;
}

PGPU_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice ordinal) {
    CUresult result = PGPU_REAL(cuDeviceGraphMemTrim)(ordinal);
    if (result == CUDA_SUCCESS) pgpu_pools_settle_one(pgpu_pools_graph_key(ordinal));
    return result;
}
