/* Executable graphs: instantiated, launched, updated. Branches of a graph run one after the other, as on a
 * device that each of its kernels fills. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stream/capture.h"
#include "graph/graph_calls.h"
#include "memory/range.h"

#define ALL_FLAGS                                                                                            \
    (CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |                  \
     CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)

struct sim_slab sim_graph_execs = SIM_SLAB(struct CUgraphExec_st, 128, 1u << 18);

static bool is_exec(CUgraphExec exec) {
    return exec != NULL && sim_is_live(&sim_graph_execs, exec);
}

static bool append(CUgraphExec exec, const struct sim_entry *entry) {
    struct sim_entry *grown = realloc(exec->entries, (exec->entry_count + 1) * sizeof(*grown));
    if (grown == NULL) return false;
    exec->entries = grown;
    grown[exec->entry_count++] = *entry;
    if (entry->memory != NULL) entry->memory->holders++;
    return true;
}

/* Each operation of a batch is an entry. */
static bool append_batch(CUgraphExec exec, struct sim_entry entry) {
    const CUDA_BATCH_MEM_OP_NODE_PARAMS *batch = &entry.origin->params.memOp;
    for (unsigned i = 0; i < batch->count; i++) {
        if (sim_value_translate(&batch->paramArray[i], &entry.work) != CUDA_SUCCESS) return false;
        if (!append(exec, &entry)) return false;
    }
    return true;
}

static bool unfold(CUgraphExec exec, CUgraph graph, CUgraphNode parent, bool is_untaken);

static bool unfold_bodies(CUgraphExec exec, CUgraphNode node, CUgraphNode parent, bool is_untaken) {
    for (unsigned i = 0; i < node->params.conditional.size; i++)
        if (!unfold(exec, node->bodies[i], parent, is_untaken || !sim_condition_takes(node, i))) return false;
    return true;
}

static bool unfold_node(CUgraphExec exec, CUgraphNode node, CUgraphNode parent, bool is_untaken) {
    struct sim_entry entry = {.origin = node,
                              .parent = parent,
                              .type = node->params.type,
                              .work = node->work,
                              .memory = node->memory,
                              .is_untaken = is_untaken};
    CUgraphNode outermost = parent != NULL ? parent : node;
    if (node->child != NULL) return unfold(exec, node->child, outermost, is_untaken);
    if (node->bodies != NULL) return unfold_bodies(exec, node, outermost, is_untaken);
    return node->operations != NULL ? append_batch(exec, entry) : append(exec, &entry);
}

/* Child graphs and conditional bodies are unfolded in the place of their node. */
static bool unfold(CUgraphExec exec, CUgraph graph, CUgraphNode parent, bool is_untaken) {
    CUgraphNode *order = sim_graph_order(graph);
    bool is_whole = order != NULL;
    for (unsigned i = 0; is_whole && i < graph->nodes.count; i++)
        is_whole = unfold_node(exec, order[i], parent, is_untaken);
    free(order);
    return is_whole;
}

static void end(CUgraphExec exec) {
    for (unsigned i = 0; i < exec->entry_count; i++)
        if (exec->entries[i].memory != NULL) sim_graph_memory_drop(exec->entries[i].memory);
    free(exec->entries);
    sim_delete(&sim_graph_execs, exec);
}

/* Reserve the memory that its nodes will take and do not have. */
static CUresult prepare(CUgraphExec exec) {
    uint64_t bytes[SIM_MAX_GPUS] = {0};
    for (unsigned i = 0; i < exec->entry_count; i++) {
        const struct sim_entry *entry = &exec->entries[i];
        if (entry->memory != NULL && entry->work.kind == SIM_WORK_ALLOC &&
            !sim_graph_memory_is_live(entry->memory))
            bytes[entry->memory->device] += entry->memory->bytes;
    }
    for (CUdevice device = 0; device < sim_driver.device_count; device++)
        SIM_TRY(sim_graph_memory_prepare(device, bytes[device]));
    return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *made, CUgraph graph, unsigned long long flags) {
    SIM_ENTER_CONTEXT(context);
    static unsigned last_id;
    SIM_LOCKED();
    if (made == NULL || !sim_is_graph(graph) || (flags & ~(unsigned long long)ALL_FLAGS) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraphExec exec = sim_new(&sim_graph_execs);
    if (exec == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    exec->flags = flags;
    exec->context = context;
    exec->id = ++last_id;
    if (!unfold(exec, graph, NULL, false)) {
        end(exec);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = exec;
    if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) == 0) return CUDA_SUCCESS;
    CUresult result = prepare(exec);
    if (result != CUDA_SUCCESS) end(exec);
    return result;
}

SIM_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    return instantiate(exec, graph, flags);
}

SIM_EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node,
                                          char *log, size_t log_bytes) {
    if (error_node != NULL) *error_node = NULL;
    if (log != NULL && log_bytes > 0) *log = '\0';
    return instantiate(exec, graph, 0);
}

SIM_EXPORT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
                                       size_t log_bytes) {
    return cuGraphInstantiate_v2(exec, graph, error_node, log, log_bytes);
}

SIM_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                                 CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    if (params == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = instantiate(exec, graph, params->flags);
    params->hErrNode_out = NULL;
    params->result_out =
        result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

SIM_EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) {
    SIM_ENTER();
    SIM_LOCKED();
    if (!is_exec(exec)) return CUDA_ERROR_INVALID_VALUE;
    end(exec);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags) {
    SIM_ENTER();
    SIM_LOCKED();
    if (!is_exec(exec) || flags == NULL) return CUDA_ERROR_INVALID_VALUE;
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphExecGetId(CUgraphExec exec, unsigned int *id) {
    SIM_ENTER();
    SIM_LOCKED();
    if (!is_exec(exec) || id == NULL) return CUDA_ERROR_INVALID_VALUE;
    *id = exec->id;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream named) {
    SIM_ENTER();
    CUstream stream;
    SIM_TRY(sim_stream_of(named, &stream));
    SIM_LOCKED();
    return is_exec(exec) ? prepare(exec) : CUDA_ERROR_INVALID_VALUE;
}

/* An allocation of a former launch that was not freed: an error, or freed now if the client requested that.
 */
static CUresult settle_memory(CUgraphExec exec) {
    bool frees = (exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
    for (unsigned i = 0; i < exec->entry_count; i++) {
        struct sim_graph_memory *memory = exec->entries[i].memory;
        if (memory == NULL || !sim_graph_memory_is_live(memory)) continue;
        if (!frees) return CUDA_ERROR_INVALID_VALUE;
        sim_graph_memory_free(memory);
    }
    return CUDA_SUCCESS;
}

static CUresult run(const struct sim_entry *entry, CUstream stream) {
    if (entry->is_disabled || entry->is_untaken || entry->work.kind == SIM_WORK_NOTHING) return CUDA_SUCCESS;
    if (entry->work.kind != SIM_WORK_ALLOC) return sim_submit(stream, &entry->work);
    SIM_LOCKED();
    return sim_graph_memory_allocate(entry->memory, stream->context);
}

/* The work is copied out, so that no lock is held while it is queued. */
static struct sim_entry *copy_entries(CUgraphExec exec, unsigned *count) {
    *count = exec->entry_count;
    struct sim_entry *copy = malloc((*count + 1) * sizeof(*copy));
    if (copy != NULL) memcpy(copy, exec->entries, *count * sizeof(*copy));
    return copy;
}

static CUresult run_or_wait(const struct sim_entry *entry, CUstream stream) {
    CUresult result = run(entry, stream);
    if (result != CUDA_ERROR_OUT_OF_MEMORY || entry->work.kind != SIM_WORK_ALLOC) return result;
    sim_stream_wait(stream); /* for what the stream frees before */
    return run(entry, stream);
}

/* A launch that fails leaves no allocation of its own. */
static void undo(const struct sim_entry *entries, unsigned count) {
    SIM_LOCKED();
    for (unsigned i = 0; i < count; i++)
        if (entries[i].work.kind == SIM_WORK_ALLOC) sim_graph_memory_free(entries[i].memory);
}

static CUresult run_all(CUgraphExec exec, CUstream stream) {
    unsigned count, done = 0;
    CUresult result = CUDA_SUCCESS;
    sim_lock();
    struct sim_entry *entries = copy_entries(exec, &count);
    sim_unlock();
    if (entries == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    for (; done < count && result == CUDA_SUCCESS; done++)
        result = run_or_wait(&entries[done], stream);
    if (result != CUDA_SUCCESS) undo(entries, done - 1);
    free(entries);
    return result;
}

SIM_EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream named) {
    SIM_ENTER();
    CUstream stream;
    SIM_TRY(sim_stream_of(named, &stream));
    if (!is_exec(exec)) return CUDA_ERROR_INVALID_VALUE;
    {
        SIM_LOCKED();
        SIM_TRY(settle_memory(exec));
    }
    return run_all(exec, stream);
}

static struct sim_entry *entry_of(CUgraphExec exec, CUgraphNode node) {
    for (unsigned i = 0; i < exec->entry_count; i++)
        if (exec->entries[i].origin == node) return &exec->entries[i];
    return NULL;
}

static unsigned count_entries(CUgraphExec exec, CUgraphNode node) {
    unsigned count = 0;
    for (unsigned i = 0; i < exec->entry_count; i++)
        count += exec->entries[i].origin == node;
    return count;
}

/* The entries of a batch follow each other; their number is fixed. */
static CUresult set_batch(CUgraphExec exec, struct sim_entry *entry,
                          const CUDA_BATCH_MEM_OP_NODE_PARAMS *batch) {
    struct sim_work work;
    if (batch->paramArray == NULL || batch->count != count_entries(exec, entry->origin))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < batch->count; i++)
        SIM_TRY(sim_value_translate(&batch->paramArray[i], &work));
    for (unsigned i = 0; i < batch->count; i++)
        SIM_TRY(sim_value_translate(&batch->paramArray[i], &entry[i].work));
    return CUDA_SUCCESS;
}

/* A description that is refused leaves the entry as it was. */
static CUresult set(CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams *params) {
    SIM_ENTER();
    struct sim_work work;
    SIM_LOCKED();
    struct sim_entry *entry = is_exec(exec) ? entry_of(exec, node) : NULL;
    if (entry == NULL || entry->type != params->type) return CUDA_ERROR_INVALID_VALUE;
    if (entry->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) return set_batch(exec, entry, &params->memOp);
    if (entry->memory != NULL || entry->type == CU_GRAPH_NODE_TYPE_MEM_FREE) return CUDA_ERROR_NOT_SUPPORTED;
    SIM_TRY(sim_node_translate(params, &work));
    entry->work = work;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                      const CUDA_KERNEL_NODE_PARAMS *kernel) {
    if (kernel == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = sim_params_of_kernel(kernel);
    return set(exec, node, &params);
}

SIM_EXPORT CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                   const CUDA_KERNEL_NODE_PARAMS_v1 *kernel) {
    if (kernel == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = sim_params_of_kernel_v1(kernel);
    return set(exec, node, &params);
}

SIM_EXPORT CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                   const CUDA_MEMCPY3D *shape, CUcontext context) {
    if (shape == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = sim_params_of_memcpy(shape, context);
    return set(exec, node, &params);
}

SIM_EXPORT CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                   const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext context) {
    if (fill == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = sim_params_of_memset(fill, context);
    return set(exec, node, &params);
}

SIM_EXPORT CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                 const CUDA_HOST_NODE_PARAMS *host) {
    if (host == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = sim_params_of_host(host);
    return set(exec, node, &params);
}

SIM_EXPORT CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
    CUgraphNodeParams params = sim_params_of_event(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
    return set(exec, node, &params);
}

SIM_EXPORT CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
    CUgraphNodeParams params = sim_params_of_event(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
    return set(exec, node, &params);
}

SIM_EXPORT CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *params) {
    return params == NULL ? CUDA_ERROR_INVALID_VALUE : set(exec, node, params);
}

SIM_EXPORT CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int is_enabled) {
    SIM_ENTER();
    SIM_LOCKED();
    struct sim_entry *entry = is_exec(exec) ? entry_of(exec, node) : NULL;
    if (entry == NULL || entry->work.kind > SIM_WORK_FILL) return CUDA_ERROR_INVALID_VALUE;
    entry->is_disabled = is_enabled == 0;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int *is_enabled) {
    SIM_ENTER();
    SIM_LOCKED();
    const struct sim_entry *entry = is_exec(exec) ? entry_of(exec, node) : NULL;
    if (entry == NULL || is_enabled == NULL) return CUDA_ERROR_INVALID_VALUE;
    *is_enabled = !entry->is_disabled;
    return CUDA_SUCCESS;
}

/* Entries of one kind may take over another graph's work; addresses of allocations stay the exec's own. */
static CUgraphExecUpdateResult compare(CUgraphExec exec, CUgraphExec with, unsigned *differing) {
    if (exec->entry_count != with->entry_count) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (*differing = 0; *differing < exec->entry_count; ++*differing) {
        const struct sim_entry *own = &exec->entries[*differing], *other = &with->entries[*differing];
        if (own->type != other->type) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        if (own->memory != NULL) return CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
    }
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

static void take_over(CUgraphExec exec, CUgraphExec from) {
    for (unsigned i = 0; i < exec->entry_count; i++) {
        exec->entries[i].work = from->entries[i].work;
        exec->entries[i].origin = from->entries[i].origin;
        exec->entries[i].is_untaken = from->entries[i].is_untaken;
    }
}

static CUresult update(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
    unsigned differing = 0;
    CUgraphExec fresh;
    if (!is_exec(exec) || !sim_is_graph(graph)) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(instantiate(&fresh, graph, 0));
    *info = (CUgraphExecUpdateResultInfo){.result = compare(exec, fresh, &differing)};
    bool is_same = info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS;
    if (is_same)
        take_over(exec, fresh);
    else if (differing < fresh->entry_count)
        info->errorNode = fresh->entries[differing].origin;
    end(fresh);
    return is_same ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

SIM_EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
    SIM_ENTER();
    CUgraphExecUpdateResultInfo unused;
    SIM_LOCKED();
    return update(exec, graph, info == NULL ? &unused : info);
}

SIM_EXPORT CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node,
                                      CUgraphExecUpdateResult *result) {
    CUgraphExecUpdateResultInfo info = {0};
    CUresult outcome = cuGraphExecUpdate_v2(exec, graph, &info);
    if (error_node != NULL) *error_node = info.errorNode;
    if (result != NULL) *result = info.result;
    return outcome;
}

/* The nodes that a child graph node was unfolded into take the work of another graph of the same shape. */
SIM_EXPORT CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child) {
    SIM_ENTER();
    CUgraphExec fresh;
    SIM_LOCKED();
    if (!is_exec(exec) || !sim_is_graph(child)) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(instantiate(&fresh, child, 0));
    unsigned next = 0;
    for (unsigned i = 0; i < exec->entry_count && next < fresh->entry_count; i++)
        if (exec->entries[i].parent == node) exec->entries[i].work = fresh->entries[next++].work;
    bool is_whole = next == fresh->entry_count;
    end(fresh);
    return is_whole ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
