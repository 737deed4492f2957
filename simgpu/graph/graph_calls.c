/* The calls that add a node of each type, and that read and change its parameters. */
#include "texture/array.h"
#include "graph/graph_calls.h"

static CUresult add_child(CUgraphNode node, CUgraph original) {
    if (!sim_is_graph(original)) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_graph_clone(original, &node->child));
    node->child->parent = node->graph;
    node->params.graph.graph = node->child;
    return CUDA_SUCCESS;
}

static CUresult add_memory(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    const CUmemLocation *location = &params->poolProps.location;
    if (params->bytesize == 0 || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(location->id)) return CUDA_ERROR_INVALID_DEVICE;
    node->memory = sim_graph_memory_new(location->id, params->bytesize);
    if (node->memory == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    params->dptr = node->params.alloc.dptr = node->memory->address;
    return CUDA_SUCCESS;
}

static CUresult fill(CUgraphNode node, CUgraphNodeParams *params) {
    if (params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
        node->params.type = params->type;
        return sim_condition_add(node, &params->conditional);
    }
    SIM_TRY(sim_node_set(node, params));
    if (params->type == CU_GRAPH_NODE_TYPE_GRAPH) return add_child(node, params->graph.graph);
    return params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? add_memory(node, &params->alloc) : CUDA_SUCCESS;
}

static CUresult add(CUgraphNode *made, CUgraph graph, const CUgraphNode *needs, size_t count,
                    CUgraphNodeParams *params) {
    SIM_ENTER();
    CUgraphNode node;
    SIM_LOCKED();
    if (made == NULL || !sim_is_graph(graph)) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_graph_add(graph, needs, count, &node));
    CUresult result = fill(node, params);
    if (result == CUDA_SUCCESS)
        *made = node;
    else
        sim_graph_remove(node);
    return result;
}

CUresult sim_node_check(CUgraphNode node, CUgraphNodeType type) {
    return sim_is_node(node) && node->params.type == type ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* What a node owns stays as it was made. */
static bool is_fixed(CUgraphNodeType type) {
    return type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
           type == CU_GRAPH_NODE_TYPE_GRAPH || type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
}

static CUresult set(CUgraphNode node, const CUgraphNodeParams *params) {
    SIM_ENTER();
    SIM_LOCKED();
    SIM_TRY(sim_node_check(node, params->type));
    if (is_fixed(params->type)) return CUDA_ERROR_NOT_SUPPORTED;
    return sim_node_set(node, params);
}

SIM_EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs,
                                            size_t count, const CUDA_KERNEL_NODE_PARAMS *kernel) {
    if (kernel == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = sim_params_of_kernel(kernel);
    return add(node, graph, needs, count, &params);
}

SIM_EXPORT CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs,
                                         size_t count, const CUDA_KERNEL_NODE_PARAMS_v1 *kernel) {
    if (kernel == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = sim_params_of_kernel_v1(kernel);
    return add(node, graph, needs, count, &params);
}

SIM_EXPORT CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *kernel) {
    SIM_ENTER();
    SIM_LOCKED();
    SIM_TRY(sim_node_check(node, CU_GRAPH_NODE_TYPE_KERNEL));
    if (kernel == NULL) return CUDA_ERROR_INVALID_VALUE;
    *kernel = node->params.kernel;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *old) {
    CUDA_KERNEL_NODE_PARAMS kernel;
    if (old == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(cuGraphKernelNodeGetParams_v2(node, &kernel));
    *old = (CUDA_KERNEL_NODE_PARAMS_v1){kernel.func,
                                        kernel.gridDimX,
                                        kernel.gridDimY,
                                        kernel.gridDimZ,
                                        kernel.blockDimX,
                                        kernel.blockDimY,
                                        kernel.blockDimZ,
                                        kernel.sharedMemBytes,
                                        NULL,
                                        NULL};
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *kernel) {
    if (kernel == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = sim_params_of_kernel(kernel);
    return set(node, &params);
}

SIM_EXPORT CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *kernel) {
    if (kernel == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = sim_params_of_kernel_v1(kernel);
    return set(node, &params);
}

SIM_EXPORT CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs,
                                         size_t count, const CUDA_MEMCPY3D *shape, CUcontext context) {
    if (shape == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = sim_params_of_memcpy(shape, context);
    return add(node, graph, needs, count, &params);
}

SIM_EXPORT CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *shape) {
    SIM_ENTER();
    SIM_LOCKED();
    SIM_TRY(sim_node_check(node, CU_GRAPH_NODE_TYPE_MEMCPY));
    if (shape == NULL) return CUDA_ERROR_INVALID_VALUE;
    *shape = node->params.memcpy.copyParams;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *shape) {
    if (shape == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = sim_params_of_memcpy(shape, NULL);
    return set(node, &params);
}

SIM_EXPORT CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs,
                                         size_t count, const CUDA_MEMSET_NODE_PARAMS *memset,
                                         CUcontext context) {
    if (memset == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = sim_params_of_memset(memset, context);
    return add(node, graph, needs, count, &params);
}

SIM_EXPORT CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *memset) {
    SIM_ENTER();
    SIM_LOCKED();
    SIM_TRY(sim_node_check(node, CU_GRAPH_NODE_TYPE_MEMSET));
    if (memset == NULL) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_MEMSET_NODE_PARAMS_v2 *kept = &node->params.memset;
    *memset = (CUDA_MEMSET_NODE_PARAMS){kept->dst,         kept->pitch, kept->value,
                                        kept->elementSize, kept->width, kept->height};
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *memset) {
    if (memset == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = sim_params_of_memset(memset, NULL);
    return set(node, &params);
}

SIM_EXPORT CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs,
                                       size_t count, const CUDA_HOST_NODE_PARAMS *host) {
    if (host == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = sim_params_of_host(host);
    return add(node, graph, needs, count, &params);
}

SIM_EXPORT CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS *host) {
    SIM_ENTER();
    SIM_LOCKED();
    SIM_TRY(sim_node_check(node, CU_GRAPH_NODE_TYPE_HOST));
    if (host == NULL) return CUDA_ERROR_INVALID_VALUE;
    *host = (CUDA_HOST_NODE_PARAMS){node->params.host.fn, node->params.host.userData};
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS *host) {
    if (host == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = sim_params_of_host(host);
    return set(node, &params);
}

SIM_EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs,
                                        size_t count) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
    return add(node, graph, needs, count, &params);
}

SIM_EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs,
                                             size_t count, CUgraph child) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = {.graph = child}};
    return add(node, graph, needs, count, &params);
}

SIM_EXPORT CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *child) {
    SIM_ENTER();
    SIM_LOCKED();
    SIM_TRY(sim_node_check(node, CU_GRAPH_NODE_TYPE_GRAPH));
    if (child == NULL) return CUDA_ERROR_INVALID_VALUE;
    *child = node->child;
    return CUDA_SUCCESS;
}

#define EVENT_CALLS(Name, TYPE)                                                                              \
    SIM_EXPORT CUresult cuGraphAddEvent##Name##Node(CUgraphNode *node, CUgraph graph,                        \
                                                    const CUgraphNode *needs, size_t count, CUevent event) { \
        CUgraphNodeParams params = sim_params_of_event(TYPE, event);                                         \
        return add(node, graph, needs, count, &params);                                                      \
    }                                                                                                        \
    SIM_EXPORT CUresult cuGraphEvent##Name##NodeGetEvent(CUgraphNode node, CUevent *event) {                 \
        SIM_ENTER();                                                                                         \
        SIM_LOCKED();                                                                                        \
        SIM_TRY(sim_node_check(node, TYPE));                                                                 \
        if (event == NULL) return CUDA_ERROR_INVALID_VALUE;                                                  \
        *event = node->params.eventRecord.event;                                                             \
        return CUDA_SUCCESS;                                                                                 \
    }                                                                                                        \
    SIM_EXPORT CUresult cuGraphEvent##Name##NodeSetEvent(CUgraphNode node, CUevent event) {                  \
        CUgraphNodeParams params = sim_params_of_event(TYPE, event);                                         \
        return set(node, &params);                                                                           \
    }

EVENT_CALLS(Record, CU_GRAPH_NODE_TYPE_EVENT_RECORD)
EVENT_CALLS(Wait, CU_GRAPH_NODE_TYPE_WAIT_EVENT)

SIM_EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs,
                                           size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *alloc) {
    if (alloc == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .alloc = *alloc};
    SIM_TRY(add(node, graph, needs, count, &params));
    alloc->dptr = params.alloc.dptr;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *alloc) {
    SIM_ENTER();
    SIM_LOCKED();
    SIM_TRY(sim_node_check(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC));
    if (alloc == NULL) return CUDA_ERROR_INVALID_VALUE;
    *alloc = node->params.alloc;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs,
                                          size_t count, CUdeviceptr address) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .free = {.dptr = address}};
    return address == 0 ? CUDA_ERROR_INVALID_VALUE : add(node, graph, needs, count, &params);
}

SIM_EXPORT CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *address) {
    SIM_ENTER();
    SIM_LOCKED();
    SIM_TRY(sim_node_check(node, CU_GRAPH_NODE_TYPE_MEM_FREE));
    if (address == NULL) return CUDA_ERROR_INVALID_VALUE;
    *address = node->params.free.dptr;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                   CUgraphNodeParams *params) {
    return params == NULL ? CUDA_ERROR_INVALID_VALUE : add(node, graph, needs, count, params);
}

SIM_EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs,
                                      const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params) {
    (void)edges; /* ports only order parts of kernels */
    return cuGraphAddNode(node, graph, needs, count, params);
}

SIM_EXPORT CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs,
                                      const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params) {
    return cuGraphAddNode_v2(node, graph, needs, edges, count, params);
}

SIM_EXPORT CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *params) {
    return params == NULL ? CUDA_ERROR_INVALID_VALUE : set(node, params);
}

SIM_EXPORT CUresult cuGraphNodeSetParams_v2(CUgraphNode node, CUgraphNodeParams *params) {
    return cuGraphNodeSetParams(node, params);
}

SIM_EXPORT CUresult cuGraphNodeGetParams(CUgraphNode node, CUgraphNodeParams *params) {
    SIM_ENTER();
    SIM_LOCKED();
    if (params == NULL || !sim_is_node(node)) return CUDA_ERROR_INVALID_VALUE;
    *params = node->params;
    return CUDA_SUCCESS;
}
