/* Objects of the client that graphs keep alive and destroy with their last reference. */
#include <stdlib.h>
#include <string.h>

#include "graph/graph.h"

struct CUuserObject_st {
    struct sim_head head;
    void *object;
    CUhostFn destroy;
    unsigned count;
};

static struct sim_slab objects = SIM_SLAB(struct CUuserObject_st, 64, 1u << 18);

static bool is_object(CUuserObject object) {
    return object != NULL && sim_is_live(&objects, object);
}

static void release(CUuserObject object, unsigned count) {
    object->count -= count;
    if (object->count > 0) return;
    object->destroy(object->object);
    sim_delete(&objects, object);
}

SIM_EXPORT CUresult cuUserObjectCreate(CUuserObject *made, void *object, CUhostFn destroy, unsigned int count,
                                       unsigned int flags) {
    if (made == NULL || destroy == NULL || count == 0 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    *made = sim_new(&objects);
    if (*made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    (*made)->object = object;
    (*made)->destroy = destroy;
    (*made)->count = count;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuUserObjectRetain(CUuserObject object, unsigned int count) {
    SIM_LOCKED();
    if (!is_object(object) || count == 0) return CUDA_ERROR_INVALID_VALUE;
    object->count += count;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuUserObjectRelease(CUuserObject object, unsigned int count) {
    SIM_LOCKED();
    if (!is_object(object) || count == 0 || count > object->count) return CUDA_ERROR_INVALID_VALUE;
    release(object, count);
    return CUDA_SUCCESS;
}

static bool add(struct sim_user_objects *kept, CUuserObject object, unsigned count) {
    unsigned length = kept->length + 1;
    CUuserObject *objects_grown = realloc(kept->object, length * sizeof(*objects_grown));
    if (objects_grown == NULL) return false;
    kept->object = objects_grown;
    unsigned *counts_grown = realloc(kept->count, length * sizeof(*counts_grown));
    if (counts_grown == NULL) return false;
    kept->count = counts_grown;
    kept->object[kept->length] = object;
    kept->count[kept->length] = count;
    kept->length = length;
    return true;
}

bool sim_user_objects_copy(struct sim_user_objects *to, const struct sim_user_objects *from) {
    for (unsigned i = 0; i < from->length; i++) {
        if (!add(to, from->object[i], from->count[i])) return false;
        from->object[i]->count += from->count[i];
    }
    return true;
}

void sim_user_objects_drop(struct sim_user_objects *kept) {
    for (unsigned i = 0; i < kept->length; i++)
        if (kept->count[i] > 0) release(kept->object[i], kept->count[i]);
    free(kept->object);
    free(kept->count);
    *kept = (struct sim_user_objects){0};
}

SIM_EXPORT CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                            unsigned int flags) {
    SIM_ENTER();
    SIM_LOCKED();
    if (!sim_is_graph(graph) || !is_object(object) || count == 0 || flags > CU_GRAPH_USER_OBJECT_MOVE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!add(&graph->objects, object, count)) return CUDA_ERROR_OUT_OF_MEMORY;
    /* A moved reference was the caller's own. */
    if (flags != CU_GRAPH_USER_OBJECT_MOVE) object->count += count;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count) {
    SIM_ENTER();
    SIM_LOCKED();
    if (!sim_is_graph(graph) || !is_object(object) || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < graph->objects.length; i++) {
        if (graph->objects.object[i] != object || graph->objects.count[i] < count) continue;
        graph->objects.count[i] -= count;
        release(object, count);
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}
