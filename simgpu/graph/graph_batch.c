/* Nodes that write words of memory and wait for them. */
#include <stdlib.h>
#include <string.h>

#include "graph/graph.h"
#include "graph/graph_calls.h"

static CUresult check(const CUDA_BATCH_MEM_OP_NODE_PARAMS *params) {
    struct sim_work unused;
    if (params->count == 0 || params->count > 256 || params->paramArray == NULL || params->flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < params->count; i++)
        SIM_TRY(sim_value_translate(&params->paramArray[i], &unused));
    return CUDA_SUCCESS;
}

CUresult sim_batch_set(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *params) {
    SIM_TRY(check(params));
    size_t bytes = params->count * sizeof(*params->paramArray);
    CUstreamBatchMemOpParams *copy = malloc(bytes);
    if (copy == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(copy, params->paramArray, bytes);
    free(node->operations);
    node->operations = copy;
    node->params.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    node->params.memOp = *params;
    node->params.memOp.paramArray = copy;
    return CUDA_SUCCESS;
}

static CUgraphNodeParams of_batch(const CUDA_BATCH_MEM_OP_NODE_PARAMS *batch) {
    return (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, .memOp = *batch};
}

SIM_EXPORT CUresult cuGraphAddBatchMemOpNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs,
                                             size_t count, const CUDA_BATCH_MEM_OP_NODE_PARAMS *batch) {
    if (batch == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = of_batch(batch);
    return cuGraphAddNode(node, graph, needs, count, &params);
}

SIM_EXPORT CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS *batch) {
    SIM_ENTER();
    SIM_LOCKED();
    SIM_TRY(sim_node_check(node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP));
    if (batch == NULL) return CUDA_ERROR_INVALID_VALUE;
    *batch = node->params.memOp;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode node,
                                                   const CUDA_BATCH_MEM_OP_NODE_PARAMS *batch) {
    if (batch == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = of_batch(batch);
    return cuGraphNodeSetParams(node, &params);
}

SIM_EXPORT CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                       const CUDA_BATCH_MEM_OP_NODE_PARAMS *batch) {
    if (batch == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = of_batch(batch);
    return cuGraphExecNodeSetParams(exec, node, &params);
}
