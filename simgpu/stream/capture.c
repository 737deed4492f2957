/* Stream capture: work turned into nodes, across all streams that joined through events. */
#include "stream/capture.h"

#include <stdlib.h>

#include "graph/graph.h"

struct sim_capture {
    unsigned users; /* streams and events that point here */
    CUgraph graph;
    CUstream origin;
    cuuint64_t id;
    uint64_t thread;
    CUstreamCaptureMode mode;
    bool is_spoilt;
    bool owns_graph; /* else the client gave it */
};

static unsigned live_captures; /* under sim_lock */
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static uint64_t thread_identity(void) {
    static __thread char here;
    return (uintptr_t)&here;
}

static void drop(struct sim_capture **capture) {
    struct sim_capture *dropped = *capture;
    *capture = NULL;
    if (dropped == NULL || --dropped->users > 0) return;
    free(dropped);
    live_captures--;
}

static void hold(struct sim_capture **to, struct sim_capture *capture) {
    if (*to == capture) return;
    drop(to);
    capture->users++;
    *to = capture;
}

/* Whether a stream that keeps step with the legacy one captures in its context; and spoil all such captures.
 */
static bool is_capture_beside(CUstream legacy, bool spoils) {
    bool is_found = false;
    for (uint32_t i = 0; live_captures > 0 && i < sim_streams.used; i++) {
        CUstream stream = sim_at(&sim_streams, i);
        if (stream == NULL || stream->context != legacy->context || !stream->keeps_step) continue;
        if (stream->capture == NULL) continue;
        is_found = true;
        if (spoils) stream->capture->is_spoilt = true;
    }
    return is_found;
}

static CUresult check_legacy(CUstream stream, bool spoils) {
    if (stream != stream->context->legacy || !is_capture_beside(stream, spoils)) return CUDA_SUCCESS;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult sim_capture_forbids_legacy(CUstream stream) {
    return check_legacy(stream, true);
}

CUresult sim_capture_forbids(CUstream stream) {
    SIM_LOCKED();
    if (stream->capture == NULL) return sim_capture_forbids_legacy(stream);
    stream->capture->is_spoilt = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static CUresult check(const struct sim_capture *capture) {
    return capture->is_spoilt ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

static CUresult add_node(CUstream stream, CUgraphNode *node) {
    SIM_TRY(check(stream->capture));
    SIM_TRY(sim_graph_add(stream->capture->graph, stream->tail.node, stream->tail.count, node));
    return sim_nodes_copy(&stream->tail, node, 1) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_capture_add_described(CUstream stream, const CUgraphNodeParams *params) {
    CUgraphNode node;
    SIM_TRY(add_node(stream, &node));
    return sim_node_set(node, params);
}

static CUresult add_value(CUstream stream, const struct sim_work *work) {
    CUstreamBatchMemOpParams operation;
    sim_value_describe(work, &operation);
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
                                .memOp = {.ctx = stream->context, .count = 1, .paramArray = &operation}};
    return sim_capture_add_described(stream, &params);
}

CUresult sim_capture_add(CUstream stream, const struct sim_work *work) {
    CUgraphNode node;
    if (sim_is_value_work(work)) return add_value(stream, work);
    if (work->kind == SIM_WORK_HOST && work->host.function == NULL)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    SIM_TRY(add_node(stream, &node));
    sim_node_describe(work, &node->params);
    node->work = *work;
    return CUDA_SUCCESS;
}

CUresult sim_capture_allocate(CUstream stream, CUmemoryPool pool, size_t bytes, CUdeviceptr *address) {
    CUgraphNode node;
    CUdevice device = stream->context->device;
    (void)pool; /* a graph's memory is not a pool's */
    struct sim_graph_memory *memory = sim_graph_memory_new(device, bytes);
    if (memory == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = add_node(stream, &node);
    if (result != CUDA_SUCCESS) {
        sim_graph_memory_drop(memory);
        return result;
    }
    node->params = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    node->params.alloc.poolProps.location =
        (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    node->params.alloc.bytesize = bytes;
    node->params.alloc.dptr = *address = memory->address;
    node->work.kind = SIM_WORK_ALLOC;
    node->memory = memory;
    return CUDA_SUCCESS;
}

CUresult sim_capture_record(CUstream stream, CUevent event) {
    SIM_LOCKED();
    SIM_TRY(check(stream->capture));
    if (!sim_nodes_copy(&event->captured_after, stream->tail.node, stream->tail.count))
        return CUDA_ERROR_OUT_OF_MEMORY;
    hold(&event->capture, stream->capture);
    return CUDA_SUCCESS;
}

/* The waiting stream joins the capture, and stands after what was recorded too. */
CUresult sim_capture_await(CUstream stream, CUevent event) {
    SIM_LOCKED();
    SIM_TRY(check(event->capture));
    if (stream->capture != NULL && stream->capture != event->capture) {
        stream->capture->is_spoilt = event->capture->is_spoilt = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (stream == stream->context->legacy) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    hold(&stream->capture, event->capture);
    for (unsigned i = 0; i < event->captured_after.count; i++) {
        CUgraphNode node = event->captured_after.node[i];
        if (!sim_nodes_have(&stream->tail, node) && !sim_nodes_add(&stream->tail, node))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

void sim_capture_leave_event(CUevent event) {
    drop(&event->capture);
    sim_nodes_clear(&event->captured_after);
}

static void leave(CUstream stream) {
    drop(&stream->capture);
    sim_nodes_clear(&stream->tail);
}

/* No stream and no event keeps part in a capture that ends. */
static void dissolve(struct sim_capture *capture) {
    for (uint32_t i = 0; i < sim_events.used; i++) {
        CUevent event = sim_at(&sim_events, i);
        if (event != NULL && event->capture == capture) sim_capture_leave_event(event);
    }
    for (uint32_t i = 0; i < sim_streams.used; i++) {
        CUstream stream = sim_at(&sim_streams, i);
        if (stream != NULL && stream->capture == capture) leave(stream);
    }
}

static void discard(struct sim_capture *capture) {
    CUgraph graph = capture->graph;
    bool owns_graph = capture->owns_graph;
    graph->is_capturing = false;
    dissolve(capture);
    if (owns_graph) sim_graph_delete(graph);
}

void sim_capture_abandon(CUstream stream) {
    struct sim_capture *capture = stream->capture;
    if (capture->origin == stream)
        discard(capture);
    else
        capture->is_spoilt = true;
    leave(stream);
}

static CUresult begin(CUstream stream, CUgraph graph, CUstreamCaptureMode mode) {
    static cuuint64_t last_id;
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    if (stream == stream->context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture != NULL) return CUDA_ERROR_ILLEGAL_STATE;
    struct sim_capture *capture = calloc(1, sizeof(*capture));
    CUgraph captured = graph != NULL ? graph : sim_graph_new();
    if (capture == NULL || captured == NULL) {
        free(capture);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *capture = (struct sim_capture){.graph = captured,
                                    .origin = stream,
                                    .id = ++last_id,
                                    .thread = thread_identity(),
                                    .mode = mode,
                                    .owns_graph = graph == NULL};
    captured->is_capturing = true;
    live_captures++;
    hold(&stream->capture, capture);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamBeginCapture_v2(CUstream named, CUstreamCaptureMode mode) {
    SIM_ENTER();
    CUstream stream;
    SIM_TRY(sim_stream_of(named, &stream));
    SIM_LOCKED();
    return begin(stream, NULL, mode);
}

SIM_EXPORT CUresult cuStreamBeginCapture(CUstream stream) {
    return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

SIM_EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream named, CUgraph graph, const CUgraphNode *needs,
                                                const CUgraphEdgeData *edges, size_t count,
                                                CUstreamCaptureMode mode) {
    SIM_ENTER();
    CUstream stream;
    (void)edges;
    SIM_TRY(sim_stream_of(named, &stream));
    SIM_LOCKED();
    if (!sim_is_graph(graph) || (count > 0 && needs == NULL)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!sim_is_node(needs[i]) || needs[i]->graph != graph) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(begin(stream, graph, mode));
    return sim_nodes_copy(&stream->tail, needs, count) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static bool is_needed(CUgraph graph, CUgraphNode node) {
    for (unsigned i = 0; i < graph->nodes.count; i++)
        if (sim_nodes_have(&graph->nodes.node[i]->needs, node)) return true;
    return false;
}

/* Work of a stream that was never waited for again by the first one. */
static bool has_unjoined(CUstream origin, CUgraph graph) {
    for (uint32_t i = 0; i < sim_streams.used; i++) {
        CUstream stream = sim_at(&sim_streams, i);
        if (stream == NULL || stream == origin || stream->capture != origin->capture) continue;
        for (unsigned k = 0; k < stream->tail.count; k++)
            if (!sim_nodes_have(&origin->tail, stream->tail.node[k]) &&
                !is_needed(graph, stream->tail.node[k]))
                return true;
    }
    return false;
}

static CUresult end(CUstream stream, CUgraph *graph) {
    struct sim_capture *capture = stream->capture;
    *graph = NULL;
    if (capture == NULL) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != thread_identity())
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    CUresult result = check(capture);
    if (result == CUDA_SUCCESS && has_unjoined(stream, capture->graph))
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (result != CUDA_SUCCESS) {
        discard(capture);
        return result;
    }
    *graph = capture->graph;
    (*graph)->is_capturing = false;
    dissolve(capture);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamEndCapture(CUstream named, CUgraph *graph) {
    SIM_ENTER();
    CUstream stream;
    if (graph == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_stream_of(named, &stream));
    SIM_LOCKED();
    return end(stream, graph);
}

static CUstreamCaptureStatus status_of(CUstream stream) {
    if (stream->capture == NULL) return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream->capture->is_spoilt ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                      : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

SIM_EXPORT CUresult cuStreamIsCapturing(CUstream named, CUstreamCaptureStatus *status) {
    SIM_ENTER();
    CUstream stream;
    if (status == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_stream_of(named, &stream));
    SIM_LOCKED();
    SIM_TRY(check_legacy(stream, false));
    *status = status_of(stream);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream named, CUstreamCaptureStatus *status, cuuint64_t *id,
                                              CUgraph *graph, const CUgraphNode **nodes, size_t *count) {
    SIM_ENTER();
    CUstream stream;
    if (status == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_stream_of(named, &stream));
    SIM_LOCKED();
    SIM_TRY(check_legacy(stream, false));
    *status = status_of(stream);
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
    if (id != NULL) *id = stream->capture->id;
    if (graph != NULL) *graph = stream->capture->graph;
    if (nodes != NULL) *nodes = stream->tail.node;
    if (count != NULL) *count = stream->tail.count;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id) {
    return cuStreamGetCaptureInfo_v2(stream, status, id, NULL, NULL, NULL);
}

SIM_EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                              CUgraph *graph, const CUgraphNode **nodes,
                                              const CUgraphEdgeData **edges, size_t *count) {
    if (edges != NULL) *edges = NULL; /* every edge is an ordinary one */
    return cuStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count);
}

static CUresult check_nodes(CUgraph graph, CUgraphNode *nodes, size_t count) {
    if (count > 0 && nodes == NULL) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!sim_is_node(nodes[i]) || nodes[i]->graph != graph) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamUpdateCaptureDependencies(CUstream named, CUgraphNode *nodes, size_t count,
                                                      unsigned int flags) {
    SIM_ENTER();
    CUstream stream;
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_stream_of(named, &stream));
    SIM_LOCKED();
    if (stream->capture == NULL) return CUDA_ERROR_ILLEGAL_STATE;
    SIM_TRY(check_nodes(stream->capture->graph, nodes, count));
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) stream->tail.count = 0;
    for (size_t i = 0; i < count; i++)
        if (!sim_nodes_have(&stream->tail, nodes[i]) && !sim_nodes_add(&stream->tail, nodes[i]))
            return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *nodes,
                                                         const CUgraphEdgeData *edges, size_t count,
                                                         unsigned int flags) {
    (void)edges;
    return cuStreamUpdateCaptureDependencies(stream, nodes, count, flags);
}

SIM_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    if (mode == NULL || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
