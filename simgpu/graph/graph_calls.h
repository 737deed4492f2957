/* What the calls on nodes of graphs and of executable graphs share: the older descriptions of a node as the
 * one that holds all. */
#ifndef SIM_GRAPH_CALLS_H
#define SIM_GRAPH_CALLS_H

#include "graph/graph.h"

/* Whether it is a node of this type. Under sim_lock. */
CUresult sim_node_check(CUgraphNode node, CUgraphNodeType type);

static inline CUgraphNodeParams sim_params_of_kernel(const CUDA_KERNEL_NODE_PARAMS *kernel) {
    return (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = *kernel};
}

static inline CUgraphNodeParams sim_params_of_kernel_v1(const CUDA_KERNEL_NODE_PARAMS_v1 *old) {
    CUDA_KERNEL_NODE_PARAMS kernel = {old->func,         old->gridDimX,  old->gridDimY,  old->gridDimZ,
                                      old->blockDimX,    old->blockDimY, old->blockDimZ, old->sharedMemBytes,
                                      old->kernelParams, old->extra,     NULL,           NULL};
    return sim_params_of_kernel(&kernel);
}

static inline CUgraphNodeParams sim_params_of_memset(const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext context) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
    params.memset = (CUDA_MEMSET_NODE_PARAMS_v2){fill->dst,   fill->pitch,  fill->value, fill->elementSize,
                                                 fill->width, fill->height, context};
    return params;
}

static inline CUgraphNodeParams sim_params_of_memcpy(const CUDA_MEMCPY3D *shape, CUcontext context) {
    return (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_MEMCPY,
                               .memcpy = {.copyCtx = context, .copyParams = *shape}};
}

static inline CUgraphNodeParams sim_params_of_host(const CUDA_HOST_NODE_PARAMS *host) {
    return (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_HOST,
                               .host = {.fn = host->fn, .userData = host->userData}};
}

static inline CUgraphNodeParams sim_params_of_event(CUgraphNodeType type, CUevent event) {
    CUgraphNodeParams params = {.type = type};
    params.eventRecord.event = event;
    return params;
}

#endif
