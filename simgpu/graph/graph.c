/* Graphs as nodes and edges. */
#include "graph/graph.h"

#include <stdlib.h>
#include <string.h>

struct sim_slab sim_graphs = SIM_SLAB(struct CUgraph_st, 128, 1u << 18);
struct sim_slab sim_graph_nodes = SIM_SLAB(struct CUgraphNode_st, 4096, 1u << 20);

bool sim_nodes_add(struct sim_nodes *nodes, CUgraphNode node) {
    if (nodes->count == nodes->capacity) {
        unsigned capacity = nodes->capacity * 2 + 4;
        CUgraphNode *grown = realloc(nodes->node, capacity * sizeof(CUgraphNode));
        if (grown == NULL) return false;
        nodes->node = grown;
        nodes->capacity = capacity;
    }
    nodes->node[nodes->count++] = node;
    return true;
}

bool sim_nodes_have(const struct sim_nodes *nodes, CUgraphNode node) {
    for (unsigned i = 0; i < nodes->count; i++)
        if (nodes->node[i] == node) return true;
    return false;
}

void sim_nodes_remove(struct sim_nodes *nodes, CUgraphNode node) {
    unsigned kept = 0;
    for (unsigned i = 0; i < nodes->count; i++)
        if (nodes->node[i] != node) nodes->node[kept++] = nodes->node[i];
    nodes->count = kept;
}

bool sim_nodes_copy(struct sim_nodes *to, const CUgraphNode *from, size_t count) {
    to->count = 0;
    for (size_t i = 0; i < count; i++)
        if (!sim_nodes_have(to, from[i]) && !sim_nodes_add(to, from[i])) return false;
    return true;
}

void sim_nodes_clear(struct sim_nodes *nodes) {
    free(nodes->node);
    *nodes = (struct sim_nodes){0};
}

CUgraph sim_graph_new(void) {
    static unsigned last_id;
    CUgraph graph = sim_new(&sim_graphs);
    if (graph != NULL) graph->id = ++last_id;
    return graph;
}

static bool are_nodes_of(CUgraph graph, const CUgraphNode *nodes, size_t count) {
    if (count > 0 && nodes == NULL) return false;
    for (size_t i = 0; i < count; i++)
        if (!sim_is_node(nodes[i]) || nodes[i]->graph != graph) return false;
    return true;
}

CUresult sim_graph_add(CUgraph graph, const CUgraphNode *needs, size_t count, CUgraphNode *made) {
    if (!are_nodes_of(graph, needs, count)) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNode node = sim_new(&sim_graph_nodes);
    if (node == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    node->graph = graph;
    node->id = ++graph->last_node_id;
    node->params.type = CU_GRAPH_NODE_TYPE_EMPTY;
    node->work.kind = SIM_WORK_NOTHING;
    if (!sim_nodes_copy(&node->needs, needs, count) || !sim_nodes_add(&graph->nodes, node)) {
        sim_nodes_clear(&node->needs);
        sim_delete(&sim_graph_nodes, node);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = node;
    return CUDA_SUCCESS;
}

static void end_node(CUgraphNode node) {
    sim_nodes_clear(&node->needs);
    if (node->memory != NULL) sim_graph_memory_drop(node->memory);
    if (node->child != NULL) sim_graph_delete(node->child);
    if (node->bodies != NULL) sim_condition_remove(node);
    free(node->operations);
    sim_delete(&sim_graph_nodes, node);
}

void sim_graph_remove(CUgraphNode node) {
    CUgraph graph = node->graph;
    sim_nodes_remove(&graph->nodes, node);
    for (unsigned i = 0; i < graph->nodes.count; i++)
        sim_nodes_remove(&graph->nodes.node[i]->needs, node);
    end_node(node);
}

void sim_graph_delete(CUgraph graph) {
    for (unsigned i = 0; i < graph->nodes.count; i++)
        end_node(graph->nodes.node[i]);
    sim_nodes_clear(&graph->nodes);
    sim_user_objects_drop(&graph->objects);
    sim_conditions_delete_of(graph);
    sim_delete(&sim_graphs, graph);
}

static unsigned index_of(CUgraph graph, CUgraphNode node) {
    unsigned i = 0;
    while (graph->nodes.node[i] != node)
        i++;
    return i;
}

static bool needs_only_done(CUgraph graph, CUgraphNode node, const bool *is_done) {
    for (unsigned i = 0; i < node->needs.count; i++)
        if (!is_done[index_of(graph, node->needs.node[i])]) return false;
    return true;
}

/* Edges are mostly in the order in which nodes were added, so few passes are needed. */
CUgraphNode *sim_graph_order(CUgraph graph) {
    unsigned count = graph->nodes.count, placed = 0;
    CUgraphNode *order = calloc(count + 1, sizeof(*order));
    bool *is_done = calloc(count + 1, sizeof(*is_done));
    for (unsigned before = 1; order != NULL && is_done != NULL && placed < count && before != placed;) {
        before = placed;
        for (unsigned i = 0; i < count; i++) {
            if (is_done[i] || !needs_only_done(graph, graph->nodes.node[i], is_done)) continue;
            is_done[i] = true;
            order[placed++] = graph->nodes.node[i];
        }
        if (placed == before) break;
    }
    free(is_done);
    return order;
}

static CUresult clone_node(CUgraph clone, CUgraphNode original) {
    CUgraphNode node;
    SIM_TRY(sim_graph_add(clone, NULL, 0, &node));
    node->cloned_from = original;
    node->params = original->params;
    node->work = original->work;
    memcpy(node->attribute, original->attribute, sizeof(node->attribute));
    node->memory = original->memory;
    if (node->memory != NULL) node->memory->holders++;
    if (original->operations != NULL) {
        node->params.type = CU_GRAPH_NODE_TYPE_EMPTY;
        return sim_batch_set(node, &original->params.memOp);
    }
    if (original->bodies != NULL) {
        node->params.conditional.size = 0;
        return sim_condition_copy(node, original);
    }
    if (original->child == NULL) return CUDA_SUCCESS;
    SIM_TRY(sim_graph_clone(original->child, &node->child));
    node->child->parent = clone;
    node->params.graph.graph = node->child;
    return CUDA_SUCCESS;
}

/* Edges come after all nodes, since they may point forward. */
static CUresult clone_edges(CUgraph original, CUgraph clone) {
    for (unsigned i = 0; i < original->nodes.count; i++) {
        const struct sim_nodes *needs = &original->nodes.node[i]->needs;
        for (unsigned k = 0; k < needs->count; k++) {
            CUgraphNode need = clone->nodes.node[index_of(original, needs->node[k])];
            if (!sim_nodes_add(&clone->nodes.node[i]->needs, need)) return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return CUDA_SUCCESS;
}

static CUresult fill_clone(CUgraph original, CUgraph clone) {
    clone->cloned_from = original;
    for (unsigned i = 0; i < original->nodes.count; i++)
        SIM_TRY(clone_node(clone, original->nodes.node[i]));
    SIM_TRY(clone_edges(original, clone));
    return sim_user_objects_copy(&clone->objects, &original->objects) ? CUDA_SUCCESS
                                                                      : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_graph_clone(CUgraph original, CUgraph *made) {
    CUgraph clone = sim_graph_new();
    if (clone == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = fill_clone(original, clone);
    if (result == CUDA_SUCCESS)
        *made = clone;
    else
        sim_graph_delete(clone);
    return result;
}

SIM_EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned int flags) {
    SIM_ENTER();
    if (graph == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    *graph = sim_graph_new();
    return *graph == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphDestroy(CUgraph graph) {
    SIM_ENTER();
    SIM_LOCKED();
    if (!sim_is_graph(graph) || graph->parent != NULL || graph->is_capturing) return CUDA_ERROR_INVALID_VALUE;
    sim_graph_delete(graph);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphClone(CUgraph *clone, CUgraph original) {
    SIM_ENTER();
    SIM_LOCKED();
    if (clone == NULL || !sim_is_graph(original)) return CUDA_ERROR_INVALID_VALUE;
    return sim_graph_clone(original, clone);
}

SIM_EXPORT CUresult cuGraphDestroyNode(CUgraphNode node) {
    SIM_ENTER();
    SIM_LOCKED();
    if (!sim_is_node(node)) return CUDA_ERROR_INVALID_VALUE;
    /* A graph with an allocation node keeps its shape. */
    if (node->memory != NULL || node->params.type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        return CUDA_ERROR_NOT_SUPPORTED;
    sim_graph_remove(node);
    return CUDA_SUCCESS;
}
