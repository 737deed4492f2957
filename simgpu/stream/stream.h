/* Streams: in-order queues of work on one device's clock. */
#ifndef SIM_STREAM_H
#define SIM_STREAM_H

#include "context/context.h"

struct sim_capture;

struct sim_nodes {
    CUgraphNode *node;
    unsigned count, capacity;
};
struct sim_deferred;

struct CUstream_st {
    struct sim_head head;
    CUcontext context;
    unsigned flags;
    int priority;
    unsigned long long id;
    bool keeps_step;                   /* waits for the legacy stream and is waited for by it */
    bool is_detached;                  /* its green context is gone */
    bool is_internal;                  /* a default stream; clients cannot destroy it */
    uint64_t owner_thread;             /* of a per-thread default stream, else 0 */
    uint64_t end_ns;                   /* device time when all that was queued is done */
    struct sim_deferred *first, *last; /* what waits behind a host function */
    uint64_t deferred_count, finished_count;
    struct sim_capture *capture; /* NULL unless it captures */
    struct sim_nodes tail;       /* the nodes that the next one comes after */
    CUstreamAttrValue attribute[32];
};

struct CUevent_st {
    struct sim_head head;
    CUcontext context;
    unsigned flags;
    bool is_recorded;
    bool is_imported;
    uint32_t unsettled; /* recordings that wait behind a host function */
    uint64_t at_ns;     /* device time of the recording */
    struct sim_shared_event
        *shared; /* not NULL: the event is shared with other processes, and this is its state */
    struct sim_capture *capture;
    struct sim_nodes captured_after; /* of a recording inside a capture */
};

extern SIM_INTERNAL struct sim_slab sim_streams, sim_events;

/* Forget an event. Under sim_lock. */
void sim_event_delete(CUevent event);

/* A stream of the context, or NULL. Under sim_lock or before other threads can use the context. */
CUstream sim_stream_new(CUcontext context, unsigned flags, int priority);
void sim_streams_delete_of(CUcontext context);
/* The streams of a green context that ends can be destroyed and nothing else; its events go to the other. */
void sim_streams_detach(CUcontext from, CUcontext to);
/* The priority nearest to the requested one. */
int sim_stream_priority(int priority);

/* Whether 0 means the per-thread default stream in this call; set by the _ptds and _ptsz entry points. */
extern SIM_INTERNAL __thread bool sim_is_per_thread_call;

/* Turn what a client calls a stream (0, 1, 2 or a handle) into a stream of the current context. */
CUresult sim_default_stream_of(CUstream named, CUstream *stream);
static inline CUresult sim_stream_of(CUstream named, CUstream *stream) {
    if (named == NULL && !sim_is_per_thread_call && sim_current != NULL &&
        sim_is_live(&sim_contexts, sim_current)) {
        *stream = sim_current->legacy;
        return CUDA_SUCCESS;
    }
    if (named <= CU_STREAM_PER_THREAD) return sim_default_stream_of(named, stream);
    if (!sim_is_live(&sim_streams, named)) return CUDA_ERROR_INVALID_HANDLE;
    *stream = named;
    if (named->is_detached) return CUDA_ERROR_STREAM_DETACHED;
    return sim_is_context(named->context) ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* Wait until all that was queued so far is done. Not under sim_lock. */
void sim_stream_wait(CUstream stream);
bool sim_stream_is_done(CUstream stream);

/* When new work of a stream may begin; and that it now ends later. Under sim_lock. */
uint64_t sim_stream_begin_ns(CUstream stream);
void sim_stream_extend(CUstream stream, uint64_t end_ns);

#endif
