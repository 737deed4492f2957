/* Graphs: work and its order, made once and launched often. A graph is the client's to change, an executable
 * graph is a list of work in an order that keeps every dependency. */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H

#include "stream/work.h"

/* The address of an allocation node. It is fixed when the node is made; memory comes when the node runs and
 * goes when it is freed, which may be after the graph is gone. */
struct sim_graph_memory {
    unsigned holders;
    CUdevice device;
    uintptr_t address;
    size_t bytes;
};

struct CUgraphNode_st {
    struct sim_head head;
    CUgraph graph;
    CUgraphNode cloned_from;
    unsigned id;
    struct sim_nodes needs;   /* what must be done before */
    CUgraphNodeParams params; /* as the client gave or would get them */
    struct sim_work work;
    struct sim_graph_memory *memory; /* of an allocation node */
    CUgraph child;
    CUstreamBatchMemOpParams *operations; /* of a batch node; `params` points here */
    CUgraph *bodies;                      /* of a conditional node; `params` points here */
    CUlaunchAttributeValue attribute[24];
};

struct sim_user_objects {
    CUuserObject *object;
    unsigned *count;
    unsigned length;
};

struct CUgraph_st {
    struct sim_head head;
    CUgraph parent; /* not NULL: it belongs to a child graph node */
    CUgraph cloned_from;
    unsigned id, last_node_id;
    struct sim_nodes nodes;
    struct sim_user_objects objects;
    bool is_capturing;
};

struct sim_entry {
    CUgraphNode origin, parent; /* parent: the child graph node that it was unfolded from, or NULL */
    CUgraphNodeType type;
    struct sim_work work;
    struct sim_graph_memory *memory;
    bool is_disabled;
    bool is_untaken; /* in a body that its condition does not choose */
};

struct CUgraphExec_st {
    struct sim_head head;
    unsigned long long flags;
    unsigned id, entry_count;
    struct sim_entry *entries;
    CUcontext context;
};

extern struct sim_slab sim_graphs, sim_graph_nodes, sim_graph_execs;

static inline bool sim_is_graph(CUgraph graph) {
    return graph != NULL && sim_is_live(&sim_graphs, graph);
}

static inline bool sim_is_node(CUgraphNode node) {
    return node != NULL && sim_is_live(&sim_graph_nodes, node);
}

/* All of these under sim_lock. */
bool sim_nodes_add(struct sim_nodes *nodes, CUgraphNode node);
bool sim_nodes_have(const struct sim_nodes *nodes, CUgraphNode node);
void sim_nodes_remove(struct sim_nodes *nodes, CUgraphNode node);
bool sim_nodes_copy(struct sim_nodes *to, const CUgraphNode *from, size_t count);
void sim_nodes_clear(struct sim_nodes *nodes);

CUgraph sim_graph_new(void);
void sim_graph_delete(CUgraph graph);
CUresult sim_graph_clone(CUgraph original, CUgraph *clone);
/* A node after others, with nothing to do yet. */
CUresult sim_graph_add(CUgraph graph, const CUgraphNode *needs, size_t count, CUgraphNode *node);
void sim_graph_remove(CUgraphNode node);
/* All nodes, each after what it needs; free it with free(). */
CUgraphNode *sim_graph_order(CUgraph graph);

/* Turn a client's description into work, with its checks. */
CUresult sim_node_translate(const CUgraphNodeParams *params, struct sim_work *work);
/* And back, for what was captured. */
void sim_node_describe(const struct sim_work *work, CUgraphNodeParams *params);
CUresult sim_node_set(CUgraphNode node, const CUgraphNodeParams *params);

/* Conditional nodes. Kernels compute nothing, so a condition keeps the value that a launch gives it. */
CUresult sim_condition_add(CUgraphNode node, CUDA_CONDITIONAL_NODE_PARAMS *params);
CUresult sim_condition_copy(CUgraphNode to, CUgraphNode from);
void sim_condition_remove(CUgraphNode node);
/* Whether a launch runs this body. A loop's body runs once, since nothing could end it. */
bool sim_condition_takes(CUgraphNode node, unsigned body);
/* Handles end with the graph that they were made for. */
void sim_conditions_delete_of(CUgraph graph);

/* Batches of operations on words of memory. */
CUresult sim_batch_set(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *params);

/* Addresses of allocation nodes. */
struct sim_graph_memory *sim_graph_memory_new(CUdevice device, size_t bytes);
void sim_graph_memory_drop(struct sim_graph_memory *memory);
/* Put memory behind it, or take it away; as pooled memory of the device's graphs. */
CUresult sim_graph_memory_allocate(struct sim_graph_memory *memory, CUcontext context);
bool sim_graph_memory_is_live(const struct sim_graph_memory *memory);
void sim_graph_memory_free(struct sim_graph_memory *memory);
/* Reserve memory of a device for graphs, before they run. */
CUresult sim_graph_memory_prepare(CUdevice device, uint64_t bytes);

/* User objects that graphs keep. */
bool sim_user_objects_copy(struct sim_user_objects *to, const struct sim_user_objects *from);
void sim_user_objects_drop(struct sim_user_objects *objects);

#endif
