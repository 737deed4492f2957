/* Hooks for creating and destroying streams and for captures: they detect blocking streams, and launches that
 * are only recorded into a graph. */
#include "functions.h"
#include "time/gate.h"
#include "time/streams.h"
#include "time/timing.h"

PGPU_EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    if ((flags & CU_STREAM_NON_BLOCKING) == 0) pgpu_timing_note_blocking_stream();
    return PGPU_REAL(cuStreamCreate)(stream, flags);
}

PGPU_EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    if ((flags & CU_STREAM_NON_BLOCKING) == 0) pgpu_timing_note_blocking_stream();
    return PGPU_REAL(cuStreamCreateWithPriority)(stream, flags, priority);
}

#define STREAM_END(function)                                                                                 \
    PGPU_EXPORT CUresult function(CUstream stream) {                                                         \
        pgpu_timing_end_stream(stream);                                                                      \
        return PGPU_REAL(function)(stream);                                                                  \
    }

STREAM_END(cuStreamDestroy)
STREAM_END(cuStreamDestroy_v2)

/* Captured work costs nothing until its graph is launched. */
static void begin_capture(CUstream stream, bool is_per_thread) {
    pgpu_timing_note_use(stream, is_per_thread);
    __atomic_fetch_add(&pgpu_streams_captures, 1, __ATOMIC_ACQ_REL);
    pgpu_gate_before_synchronisation();
}

/* A capture that began in a way that has no hook was not counted. */
static void count_one_less(void) {
    unsigned seen = __atomic_load_n(&pgpu_streams_captures, __ATOMIC_ACQUIRE);
    while (seen > 0 && !__atomic_compare_exchange_n(&pgpu_streams_captures, &seen, seen - 1, true,
                                                    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    }
}

static CUresult begun(CUresult result) {
    if (result != CUDA_SUCCESS) count_one_less();
    return result;
}

/* No call reports whether a failed capture is over: the count stays, and launches go on querying their
 * stream. */
static CUresult ended(CUresult result) {
    if (result == CUDA_SUCCESS) count_one_less();
    return result;
}

#define CAPTURE(function, is_per_thread, parameters, ...)                                                    \
    PGPU_EXPORT CUresult function parameters {                                                               \
        begin_capture(stream, is_per_thread);                                                                \
        return begun(PGPU_REAL(function)(__VA_ARGS__));                                                      \
    }
#define INTO_GRAPH                                                                                           \
    (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count,   \
     CUstreamCaptureMode mode)
#define INTO_GRAPH_AGAIN                                                                                     \
    (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback callback, void *data)

CAPTURE(cuStreamBeginCapture, false, (CUstream stream), stream)
CAPTURE(cuStreamBeginCapture_ptsz, true, (CUstream stream), stream)
CAPTURE(cuStreamBeginCapture_v2, false, (CUstream stream, CUstreamCaptureMode mode), stream, mode)
CAPTURE(cuStreamBeginCapture_v2_ptsz, true, (CUstream stream, CUstreamCaptureMode mode), stream, mode)
CAPTURE(cuStreamBeginCaptureToGraph, false, INTO_GRAPH, stream, graph, nodes, edges, count, mode)
CAPTURE(cuStreamBeginCaptureToGraph_ptsz, true, INTO_GRAPH, stream, graph, nodes, edges, count, mode)
CAPTURE(cuStreamBeginRecaptureToGraph, false, INTO_GRAPH_AGAIN, stream, mode, graph, callback, data)
CAPTURE(cuStreamBeginRecaptureToGraph_ptsz, true, INTO_GRAPH_AGAIN, stream, mode, graph, callback, data)
CAPTURE(cuStreamBeginCaptureToCig, false, (CUstream stream, CUstreamCigCaptureParams *list), stream, list)
CAPTURE(cuStreamBeginCaptureToCig_ptsz, true, (CUstream stream, CUstreamCigCaptureParams *list), stream, list)

PGPU_EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    return ended(PGPU_REAL(cuStreamEndCapture)(stream, graph));
}

PGPU_EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    return ended(PGPU_REAL(cuStreamEndCapture_ptsz)(stream, graph));
}

PGPU_EXPORT CUresult cuStreamEndCaptureToCig(CUstream stream) {
    return ended(PGPU_REAL(cuStreamEndCaptureToCig)(stream));
}

PGPU_EXPORT CUresult cuStreamEndCaptureToCig_ptsz(CUstream stream) {
    return ended(PGPU_REAL(cuStreamEndCaptureToCig_ptsz)(stream));
}
