/* What a graph consists of, and its edges. */
#include "graph/graph.h"

/* Answer a list in the driver's manner: only its length where `to` is NULL; else up to `*count`, the rest
 * NULL. */
static CUresult answer(const struct sim_nodes *nodes, CUgraphNode *to, size_t *count) {
    if (count == NULL) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; to != NULL && i < *count; i++)
        to[i] = i < nodes->count ? nodes->node[i] : NULL;
    if (to == NULL || *count > nodes->count) *count = nodes->count;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    SIM_ENTER();
    SIM_LOCKED();
    return sim_is_graph(graph) ? answer(&graph->nodes, nodes, count) : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    SIM_ENTER();
    SIM_LOCKED();
    if (!sim_is_graph(graph)) return CUDA_ERROR_INVALID_VALUE;
    struct sim_nodes roots = {0};
    for (unsigned i = 0; i < graph->nodes.count; i++)
        if (graph->nodes.node[i]->needs.count == 0) sim_nodes_add(&roots, graph->nodes.node[i]);
    CUresult result = answer(&roots, nodes, count);
    sim_nodes_clear(&roots);
    return result;
}

SIM_EXPORT CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) {
    SIM_ENTER();
    SIM_LOCKED();
    if (!sim_is_graph(graph) || count == NULL || (from == NULL) != (to == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    size_t found = 0;
    for (unsigned i = 0; i < graph->nodes.count; i++) {
        CUgraphNode node = graph->nodes.node[i];
        for (unsigned k = 0; k < node->needs.count; k++, found++)
            if (from != NULL && found < *count) from[found] = node->needs.node[k], to[found] = node;
    }
    if (from == NULL || *count > found) *count = found;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count) {
    SIM_ENTER();
    SIM_LOCKED();
    return sim_is_node(node) ? answer(&node->needs, nodes, count) : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count) {
    SIM_ENTER();
    SIM_LOCKED();
    if (!sim_is_node(node)) return CUDA_ERROR_INVALID_VALUE;
    struct sim_nodes dependents = {0};
    for (unsigned i = 0; i < node->graph->nodes.count; i++)
        if (sim_nodes_have(&node->graph->nodes.node[i]->needs, node))
            sim_nodes_add(&dependents, node->graph->nodes.node[i]);
    CUresult result = answer(&dependents, nodes, count);
    sim_nodes_clear(&dependents);
    return result;
}

static void clear_edges(CUgraphEdgeData *edges, const size_t *count) {
    for (size_t i = 0; edges != NULL && i < *count; i++)
        edges[i] = (CUgraphEdgeData){0};
}

SIM_EXPORT CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to,
                                       CUgraphEdgeData *edges, size_t *count) {
    SIM_TRY(cuGraphGetEdges(graph, from, to, count));
    clear_edges(edges, count);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes,
                                                  CUgraphEdgeData *edges, size_t *count) {
    SIM_TRY(cuGraphNodeGetDependencies(node, nodes, count));
    clear_edges(edges, count);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes,
                                                    CUgraphEdgeData *edges, size_t *count) {
    SIM_TRY(cuGraphNodeGetDependentNodes(node, nodes, count));
    clear_edges(edges, count);
    return CUDA_SUCCESS;
}

static bool reaches(CUgraphNode from, CUgraphNode to) {
    if (from == to) return true;
    for (unsigned i = 0; i < from->needs.count; i++)
        if (reaches(from->needs.node[i], to)) return true;
    return false;
}

static CUresult add_edge(CUgraph graph, CUgraphNode from, CUgraphNode to) {
    if (!sim_is_node(from) || !sim_is_node(to) || from->graph != graph || to->graph != graph)
        return CUDA_ERROR_INVALID_VALUE;
    /* No edge twice, and no circle. */
    if (sim_nodes_have(&to->needs, from) || reaches(from, to)) return CUDA_ERROR_INVALID_VALUE;
    return sim_nodes_add(&to->needs, from) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                           size_t count) {
    SIM_ENTER();
    SIM_LOCKED();
    if (!sim_is_graph(graph) || (count > 0 && (from == NULL || to == NULL))) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        SIM_TRY(add_edge(graph, from[i], to[i]));
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                              size_t count) {
    SIM_ENTER();
    SIM_LOCKED();
    if (!sim_is_graph(graph) || (count > 0 && (from == NULL || to == NULL))) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (!sim_is_node(to[i]) || !sim_nodes_have(&to[i]->needs, from[i])) return CUDA_ERROR_INVALID_VALUE;
        sim_nodes_remove(&to[i]->needs, from[i]);
    }
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                              const CUgraphEdgeData *edges, size_t count) {
    (void)edges;
    return cuGraphAddDependencies(graph, from, to, count);
}

SIM_EXPORT CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from,
                                                 const CUgraphNode *to, const CUgraphEdgeData *edges,
                                                 size_t count) {
    (void)edges;
    return cuGraphRemoveDependencies(graph, from, to, count);
}

SIM_EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
    SIM_ENTER();
    SIM_LOCKED();
    if (type == NULL || !sim_is_node(node)) return CUDA_ERROR_INVALID_VALUE;
    *type = node->params.type;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphNodeFindInClone(CUgraphNode *found, CUgraphNode original, CUgraph clone) {
    SIM_ENTER();
    SIM_LOCKED();
    if (found == NULL || !sim_is_node(original) || !sim_is_graph(clone)) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < clone->nodes.count; i++) {
        *found = clone->nodes.node[i];
        if ((*found)->cloned_from == original) return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuGraphNodeGetContainingGraph(CUgraphNode node, CUgraph *graph) {
    SIM_ENTER();
    SIM_LOCKED();
    if (graph == NULL || !sim_is_node(node)) return CUDA_ERROR_INVALID_VALUE;
    *graph = node->graph;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphGetId(CUgraph graph, unsigned int *id) {
    SIM_ENTER();
    SIM_LOCKED();
    if (id == NULL || !sim_is_graph(graph)) return CUDA_ERROR_INVALID_VALUE;
    *id = graph->id;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphNodeGetLocalId(CUgraphNode node, unsigned int *id) {
    SIM_ENTER();
    SIM_LOCKED();
    if (id == NULL || !sim_is_node(node)) return CUDA_ERROR_INVALID_VALUE;
    *id = node->id;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphNodeGetToolsId(CUgraphNode node, unsigned long long *id) {
    SIM_ENTER();
    SIM_LOCKED();
    if (id == NULL || !sim_is_node(node)) return CUDA_ERROR_INVALID_VALUE;
    *id = (unsigned long long)node->graph->id << 32 | node->id;
    return CUDA_SUCCESS;
}

#define ATTRIBUTE_COUNT (sizeof(((CUgraphNode)0)->attribute) / sizeof(CUlaunchAttributeValue))

static CUresult check_attribute(CUgraphNode node, CUkernelNodeAttrID name, const void *value) {
    if (!sim_is_node(node) || node->params.type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
    return value == NULL || (unsigned)name >= ATTRIBUTE_COUNT ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID name,
                                                  CUkernelNodeAttrValue *value) {
    SIM_ENTER();
    SIM_LOCKED();
    SIM_TRY(check_attribute(node, name, value));
    *value = node->attribute[name];
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID name,
                                                  const CUkernelNodeAttrValue *value) {
    SIM_ENTER();
    SIM_LOCKED();
    SIM_TRY(check_attribute(node, name, value));
    node->attribute[name] = *value;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from) {
    SIM_ENTER();
    SIM_LOCKED();
    SIM_TRY(check_attribute(to, 0, to));
    SIM_TRY(check_attribute(from, 0, from));
    for (size_t i = 0; i < ATTRIBUTE_COUNT; i++)
        to->attribute[i] = from->attribute[i];
    return CUDA_SUCCESS;
}
