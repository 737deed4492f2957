/* Memory that graphs allocate. The driver takes it when a graph is launched or uploaded, not when it is made
 * executable (NVIDIA's cuda-samples, graphMemoryFootprint): what a launch may need more than the driver has
 * reserved is charged before it, and what the driver has reserved after it.
 *
 * Graphs that run one after the other share memory. So all graphs together need no more than a bound: for
 * each stream the largest of the graphs that were launched into it and free all that they allocate; and each
 * graph that leaves allocations behind, once, since it cannot be launched again before they are freed. The
 * driver lets nodes of one graph that never live together share memory, too; before a launch they are summed.
 */
#include "memory/graph_memory.h"

#include <stdlib.h>

#include "memory/pools.h"
#include "memory/vmm.h"
#include "slice/slice.h"
#include "time/streams.h"
#include "trace/trace.h"

#define MAX_NESTING 32

bool pgpu_graph_memory_is_used;

/* The sum of these is 0 where each address is allocated and freed. */
static uint64_t mark_of(CUdeviceptr address) {
    uint64_t mixed = address * 0x9e3779b97f4a7c15ull;
    return mixed ^ (mixed >> 29);
}

static void add_allocation(CUgraphNode node, struct pgpu_graph_footprint *footprint) {
    CUDA_MEM_ALLOC_NODE_PARAMS wanted;
    bool is_charged;
    if (PGPU_REAL(cuGraphMemAllocNodeGetParams)(node, &wanted) != CUDA_SUCCESS) return;
    const CUmemLocation *location = &wanted.poolProps.location;
    int gpu = pgpu_pools_gpu_of(wanted.poolProps.allocType, location, &is_charged);
    footprint->is_outside_lease |= is_charged && gpu == PGPU_NO_GPU;
    if (gpu == PGPU_NO_GPU) return;
    footprint->bytes[gpu] += pgpu_slice_granule(wanted.bytesize);
    footprint->ordinal[gpu] = pgpu_vmm_ordinal_of(location);
    footprint->unfreed += mark_of(wanted.dptr);
}

static void add_free(CUgraphNode node, struct pgpu_graph_footprint *footprint) {
    CUdeviceptr address;
    if (PGPU_REAL(cuGraphMemFreeNodeGetParams)(node, &address) == CUDA_SUCCESS)
        footprint->unfreed -= mark_of(address);
}

static void add_graph(CUgraph graph, struct pgpu_graph_footprint *footprint, int depth);

static void add_node(CUgraphNode node, struct pgpu_graph_footprint *footprint, int depth) {
    CUgraphNodeType type;
    CUgraph child;
    if (PGPU_REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS) return;
    footprint->nodes += type != CU_GRAPH_NODE_TYPE_GRAPH;
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) add_allocation(node, footprint);
    if (type == CU_GRAPH_NODE_TYPE_MEM_FREE) add_free(node, footprint);
    if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
        PGPU_REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS)
        add_graph(child, footprint, depth + 1);
}

static void add_graph(CUgraph graph, struct pgpu_graph_footprint *footprint, int depth) {
    size_t count = 0;
    if (depth > MAX_NESTING || PGPU_REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return;
    CUgraphNode *nodes = malloc(count * sizeof(*nodes));
    if (nodes != NULL && PGPU_REAL(cuGraphGetNodes)(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t at = 0; at < count; at++)
            add_node(nodes[at], footprint, depth);
    free(nodes);
}

/* One row for each GPU that an executable graph allocates on; handles leave the upper byte free. */
static uint64_t key_of(uint64_t handle, int gpu) {
    return handle ^ ((uint64_t)gpu << 56);
}

/* A default stream has the same handle in each context, or thread. */
static uint64_t stream_key(CUstream stream, bool is_per_thread) {
    static __thread char own;
    struct pgpu_place place = {0};
    if (!pgpu_is_default_stream(stream)) return (uint64_t)stream;
    pgpu_slice_current(&place);
    bool is_of_thread = pgpu_streams_kind(stream, is_per_thread) == PGPU_STREAM_OF_THREAD;
    return (uint64_t)place.context ^ (is_of_thread ? (uint64_t)&own : 1);
}

static uint64_t use_key(const struct pgpu_graph_use *use, int gpu) {
    return key_of(use->footprint.unfreed != 0 ? (uint64_t)use->graph : use->stream, gpu);
}

static uint64_t counted_bytes(const struct pgpu_graph_use *use, int gpu, uint64_t round) {
    struct pgpu_holding row;
    bool is_counted = pgpu_holdings_find(PGPU_KIND_GRAPH_USE, use_key(use, gpu), &row) && row.round == round;
    return is_counted ? row.used_bytes : 0;
}

/* A charge for which there is no room may itself have memory of graphs released: then the state is read
 * again. */
static CUresult begin_on(struct pgpu_graph_use *use, int gpu) {
    uint64_t pool = pgpu_pools_graph_key(use->footprint.ordinal[gpu]), most_bytes = use->footprint.bytes[gpu];
    for (;;) {
        struct pgpu_charge charge;
        struct pgpu_graph_pool seen = pgpu_pools_read_graph(pool, gpu);
        uint64_t counted = counted_bytes(use, gpu, seen.round);
        uint64_t added = most_bytes > counted ? most_bytes - counted : 0, bound = seen.bound_bytes + added;
        uint64_t missing = bound > seen.charged_bytes ? bound - seen.charged_bytes : 0;
        CUresult result = pgpu_charge_begin(&charge, gpu, missing < most_bytes ? missing : most_bytes);
        if (result != CUDA_SUCCESS) return result;
        use->added[gpu] = added;
        use->round[gpu] = seen.round;
        if (pgpu_pools_begin_graph(pool, &seen, added, charge.bytes)) return CUDA_SUCCESS;
        pgpu_charge_refund(gpu, charge.bytes);
    }
}

static void give_back(const struct pgpu_graph_use *use, int gpus) {
    for (int gpu = 0; gpu < gpus; gpu++)
        if (use->footprint.bytes[gpu] != 0)
            pgpu_pools_end_graph(pgpu_pools_graph_key(use->footprint.ordinal[gpu]), gpu, use->added[gpu]);
}

static CUresult begin(struct pgpu_graph_use *use) {
    for (int gpu = 0; gpu < (int)PGPU_MAX_GPUS; gpu++) {
        if (use->footprint.bytes[gpu] == 0) continue;
        CUresult result = begin_on(use, gpu);
        use->wait = (struct pgpu_charge){.gpu = gpu};
        if (result == CUDA_SUCCESS) continue;
        give_back(use, gpu);
        return result;
    }
    return CUDA_SUCCESS;
}

/* The rows of an executable graph. */
static void find_rows(CUgraphExec graph, struct pgpu_graph_footprint *footprint) {
    for (int gpu = 0; gpu < (int)PGPU_MAX_GPUS; gpu++) {
        struct pgpu_holding row;
        if (!pgpu_holdings_find(PGPU_KIND_GRAPH, key_of((uint64_t)graph, gpu), &row)) continue;
        footprint->bytes[gpu] = row.bytes;
        footprint->ordinal[gpu] = row.graph_ordinal;
        footprint->unfreed = row.unfreed;
    }
}

CUresult pgpu_graph_memory_begin(struct pgpu_graph_use *use, CUgraphExec graph, CUstream stream,
                                 bool is_per_thread) {
    *use = (struct pgpu_graph_use){
        .graph = graph, .stream = stream_key(stream, is_per_thread), .wait = {.gpu = PGPU_NO_GPU}};
    find_rows(graph, &use->footprint);
    return begin(use);
}

void pgpu_graph_memory_end(const struct pgpu_graph_use *use, CUresult result) {
    if (result != CUDA_SUCCESS) {
        give_back(use, PGPU_MAX_GPUS);
        return;
    }
    for (int gpu = 0; gpu < (int)PGPU_MAX_GPUS; gpu++) {
        struct pgpu_holding row = {.key = use_key(use, gpu),
                                   .round = use->round[gpu],
                                   .used_bytes = use->footprint.bytes[gpu],
                                   .count = 1,
                                   .kind = PGPU_KIND_GRAPH_USE,
                                   .gpu = (int8_t)gpu};
        if (row.used_bytes == 0) continue;
        if (use->added[gpu] != 0) pgpu_holdings_put(&row);
        pgpu_pools_end_graph(pgpu_pools_graph_key(use->footprint.ordinal[gpu]), gpu, 0);
    }
}

/* A driver that took memory already is believed. */
static CUresult note(CUgraphExec graph, const struct pgpu_graph_footprint *footprint) {
    CUresult result = CUDA_SUCCESS;
    for (int gpu = 0; gpu < (int)PGPU_MAX_GPUS; gpu++) {
        struct pgpu_holding row = {.key = key_of((uint64_t)graph, gpu),
                                   .unfreed = footprint->unfreed,
                                   .graph_ordinal = footprint->ordinal[gpu],
                                   .bytes = footprint->bytes[gpu],
                                   .count = 1,
                                   .kind = PGPU_KIND_GRAPH,
                                   .gpu = (int8_t)gpu};
        if (row.bytes == 0) continue;
        __atomic_store_n(&pgpu_graph_memory_is_used, true, __ATOMIC_RELAXED);
        if (!pgpu_holdings_put(&row)) result = CUDA_ERROR_OUT_OF_MEMORY;
        if (result == CUDA_SUCCESS)
            result = pgpu_pools_confirm(pgpu_pools_graph_key(footprint->ordinal[gpu]), gpu);
    }
    return result;
}

/* For a trace of its launches. */
static void note_nodes(CUgraphExec graph, const struct pgpu_graph_footprint *footprint) {
    struct pgpu_holding row = {
        .key = (uint64_t)graph, .nodes = footprint->nodes, .count = 1, .kind = PGPU_KIND_NODES, .gpu = -1};
    if (pgpu_trace_is_on()) pgpu_holdings_put(&row);
}

uint64_t pgpu_trace_nodes_of(CUgraphExec graph) {
    struct pgpu_holding row;
    return pgpu_holdings_find(PGPU_KIND_NODES, (uint64_t)graph, &row) ? row.nodes : 0;
}

/* Finish what made a graph executable; nothing may launch it yet. */
static CUresult finish_instantiate(CUgraphExec *executable, struct pgpu_graph_use *use, bool is_uploaded,
                                   CUresult result) {
    if (result == CUDA_SUCCESS) use->graph = *executable;
    if (is_uploaded) pgpu_graph_memory_end(use, result);
    if (result != CUDA_SUCCESS) return result;
    result = note(*executable, &use->footprint);
    if (result == CUDA_SUCCESS)
        note_nodes(*executable, &use->footprint);
    else
        cuGraphExecDestroy(*executable);
    return result;
}

#define INSTANTIATE(executable, graph, is_uploaded, in_stream, is_per_thread, call)                          \
    struct pgpu_graph_use use = {.stream = stream_key(in_stream, is_per_thread)};                            \
    add_graph(graph, &use.footprint, 0);                                                                     \
    if (use.footprint.is_outside_lease) return CUDA_ERROR_NOT_PERMITTED;                                     \
    if (!pgpu_holdings_have_room()) return CUDA_ERROR_OUT_OF_MEMORY;                                         \
    CUresult result = (is_uploaded) ? begin(&use) : CUDA_SUCCESS;                                            \
    if (result != CUDA_SUCCESS) return result;                                                               \
    return finish_instantiate(executable, &use, is_uploaded, call)

PGPU_EXPORT CUresult cuGraphInstantiate(CUgraphExec *executable, CUgraph graph, CUgraphNode *error_node,
                                        char *log, size_t log_bytes) {
    INSTANTIATE(executable, graph, false, NULL, false,
                PGPU_REAL(cuGraphInstantiate)(executable, graph, error_node, log, log_bytes));
}

PGPU_EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *executable, CUgraph graph, CUgraphNode *error_node,
                                           char *log, size_t log_bytes) {
    INSTANTIATE(executable, graph, false, NULL, false,
                PGPU_REAL(cuGraphInstantiate_v2)(executable, graph, error_node, log, log_bytes));
}

PGPU_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph,
                                                 unsigned long long flags) {
    INSTANTIATE(executable, graph, false, NULL, false,
                PGPU_REAL(cuGraphInstantiateWithFlags)(executable, graph, flags));
}

static bool uploads(const CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    return parameters != NULL && (parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0;
}

static CUstream upload_stream(const CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    return uploads(parameters) ? parameters->hUploadStream : NULL;
}

PGPU_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *executable, CUgraph graph,
                                                  CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    INSTANTIATE(executable, graph, uploads(parameters), upload_stream(parameters), false,
                PGPU_REAL(cuGraphInstantiateWithParams)(executable, graph, parameters));
}

PGPU_EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *executable, CUgraph graph,
                                                       CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    INSTANTIATE(executable, graph, uploads(parameters), upload_stream(parameters), true,
                PGPU_REAL(cuGraphInstantiateWithParams_ptsz)(executable, graph, parameters));
}

PGPU_EXPORT CUresult cuGraphUpload(CUgraphExec graph, CUstream stream) {
    PGPU_USE_GRAPH(graph, stream, false, PGPU_REAL(cuGraphUpload)(graph, stream));
}

PGPU_EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec graph, CUstream stream) {
    PGPU_USE_GRAPH(graph, stream, true, PGPU_REAL(cuGraphUpload_ptsz)(graph, stream));
}

/* The rows go before the driver may give the handle to another graph. What the graph allocated and did not
 * free outlives it. */
static void take_rows(CUgraphExec graph) {
    struct pgpu_holding row;
    for (int gpu = 0; gpu < (int)PGPU_MAX_GPUS; gpu++) {
        pgpu_holdings_take(PGPU_KIND_GRAPH, key_of((uint64_t)graph, gpu), &row);
        pgpu_holdings_take(PGPU_KIND_GRAPH_USE, key_of((uint64_t)graph, gpu), &row);
    }
}

PGPU_EXPORT CUresult cuGraphExecDestroy(CUgraphExec graph) {
    struct pgpu_graph_footprint footprint = {0};
    struct pgpu_holding nodes;
    if (pgpu_graph_memory_is_used) find_rows(graph, &footprint);
    if (pgpu_graph_memory_is_used) take_rows(graph);
    if (pgpu_trace_is_on()) pgpu_holdings_take(PGPU_KIND_NODES, (uint64_t)graph, &nodes);
    CUresult result = PGPU_REAL(cuGraphExecDestroy)(graph);
    if (result != CUDA_SUCCESS) note(graph, &footprint);
    for (int gpu = 0; gpu < (int)PGPU_MAX_GPUS; gpu++)
        if (footprint.bytes[gpu] != 0) pgpu_pools_settle_one(pgpu_pools_graph_key(footprint.ordinal[gpu]));
    return result;
}

PGPU_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice ordinal) {
    CUresult result = PGPU_REAL(cuDeviceGraphMemTrim)(ordinal);
    if (result == CUDA_SUCCESS) pgpu_pools_settle_one(pgpu_pools_graph_key(ordinal));
    return result;
}
