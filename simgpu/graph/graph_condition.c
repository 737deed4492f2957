/* Conditional nodes: bodies that a launch runs or leaves out, by a value that its handle names. */
#include <stdlib.h>

#include "graph/graph.h"

struct condition {
    struct sim_head head;
    CUgraph graph;
    CUcontext context;
    unsigned value; /* at the beginning of a launch */
    bool has_node;
};

static struct sim_slab conditions = SIM_SLAB(struct condition, 64, 1u << 16);

static struct condition *condition_of(CUgraphConditionalHandle handle) {
    struct condition *condition = (struct condition *)(uintptr_t)handle;
    return condition != NULL && sim_is_live(&conditions, condition) ? condition : NULL;
}

SIM_EXPORT CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *handle, CUgraph graph,
                                                   CUcontext context, unsigned int value,
                                                   unsigned int flags) {
    SIM_ENTER();
    if (handle == NULL || (flags & ~(unsigned)CU_GRAPH_COND_ASSIGN_DEFAULT) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (context == NULL) SIM_TRY(sim_current_context(&context));
    SIM_LOCKED();
    if (!sim_is_graph(graph) || !sim_is_context(context)) return CUDA_ERROR_INVALID_VALUE;
    struct condition *made = sim_new(&conditions);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    made->graph = graph;
    made->context = context;
    made->value = flags == 0 ? 0 : value;
    *handle = (uintptr_t)made;
    return CUDA_SUCCESS;
}

void sim_conditions_delete_of(CUgraph graph) {
    for (uint32_t i = 0; i < conditions.used; i++) {
        struct condition *condition = sim_at(&conditions, i);
        if (condition != NULL && condition->graph == graph) sim_delete(&conditions, condition);
    }
}

static CUresult check(const CUDA_CONDITIONAL_NODE_PARAMS *params) {
    const struct condition *condition = condition_of(params->handle);
    if (condition == NULL || condition->has_node) return CUDA_ERROR_INVALID_VALUE;
    if (params->ctx != NULL && params->ctx != condition->context) return CUDA_ERROR_INVALID_VALUE;
    switch ((int)params->type) {
    case CU_GRAPH_COND_TYPE_IF:
        return params->size == 1 || params->size == 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_COND_TYPE_WHILE:
        return params->size == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_COND_TYPE_SWITCH:
        return params->size > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* The bodies are the node's to end, made or copied; some may be missing after a failure. */
static CUresult make_bodies(CUgraphNode node, unsigned count, CUgraph *originals) {
    node->bodies = calloc(count, sizeof(*node->bodies));
    if (node->bodies == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    node->params.conditional.size = count;
    node->params.conditional.phGraph_out = node->bodies;
    for (unsigned i = 0; i < count; i++) {
        if (originals != NULL) SIM_TRY(sim_graph_clone(originals[i], &node->bodies[i]));
        if (originals == NULL) node->bodies[i] = sim_graph_new();
        if (node->bodies[i] == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
        node->bodies[i]->parent = node->graph;
    }
    return CUDA_SUCCESS;
}

CUresult sim_condition_add(CUgraphNode node, CUDA_CONDITIONAL_NODE_PARAMS *params) {
    SIM_TRY(check(params));
    node->params.conditional = *params;
    SIM_TRY(make_bodies(node, params->size, NULL));
    condition_of(params->handle)->has_node = true;
    params->phGraph_out = node->bodies;
    return CUDA_SUCCESS;
}

/* The copy's condition is its own, so that it outlives the original. */
CUresult sim_condition_copy(CUgraphNode to, CUgraphNode from) {
    const struct condition *original = condition_of(from->params.conditional.handle);
    struct condition *copy = original == NULL ? NULL : sim_new(&conditions);
    if (copy == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    copy->graph = to->graph;
    copy->context = original->context;
    copy->value = original->value;
    copy->has_node = true;
    to->params.conditional.handle = (uintptr_t)copy;
    return make_bodies(to, from->params.conditional.size, from->bodies);
}

void sim_condition_remove(CUgraphNode node) {
    struct condition *condition = condition_of(node->params.conditional.handle);
    if (condition != NULL) condition->has_node = false;
    for (unsigned i = 0; i < node->params.conditional.size; i++)
        if (node->bodies[i] != NULL) sim_graph_delete(node->bodies[i]);
    free(node->bodies);
}

bool sim_condition_takes(CUgraphNode node, unsigned body) {
    const CUDA_CONDITIONAL_NODE_PARAMS *params = &node->params.conditional;
    const struct condition *condition = condition_of(params->handle);
    unsigned value = condition == NULL ? 0 : condition->value;
    if (params->type == CU_GRAPH_COND_TYPE_SWITCH) return value == body;
    return body == 0 ? value != 0 : value == 0;
}
