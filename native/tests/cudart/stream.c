/* Streams, events, and graphs captured from streams. */
#include "cudart.h"

EXPORT cudaError_t cudaStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    ENTER();
    return cudart_result(DRIVER(cuStreamCreateWithPriority)(stream, flags, priority));
}

EXPORT cudaError_t cudaStreamCreateWithFlags(CUstream *stream, unsigned int flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

EXPORT cudaError_t cudaStreamCreate(CUstream *stream) {
    return cudaStreamCreateWithPriority(stream, 0, 0);
}

EXPORT cudaError_t cudaStreamDestroy(CUstream stream) {
    return cudart_result(DRIVER(cuStreamDestroy_v2)(stream));
}

EXPORT cudaError_t cudaStreamSynchronize(CUstream stream) {
    ENTER();
    return cudart_result(DRIVER(cuStreamSynchronize)(stream));
}

EXPORT cudaError_t cudaStreamQuery(CUstream stream) {
    ENTER();
    return cudart_result(DRIVER(cuStreamQuery)(stream));
}

EXPORT cudaError_t cudaStreamGetPriority(CUstream stream, int *priority) {
    ENTER();
    return cudart_result(DRIVER(cuStreamGetPriority)(stream, priority));
}

EXPORT cudaError_t cudaStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    ENTER();
    return cudart_result(DRIVER(cuStreamWaitEvent)(stream, event, flags));
}

EXPORT cudaError_t cudaStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data,
                                         unsigned int flags) {
    ENTER();
    return cudart_result(DRIVER(cuStreamAddCallback)(stream, callback, data, flags));
}

EXPORT cudaError_t cudaLaunchHostFunc(CUstream stream, CUhostFn function, void *data) {
    ENTER();
    return cudart_result(DRIVER(cuLaunchHostFunc)(stream, function, data));
}

EXPORT cudaError_t cudaEventCreateWithFlags(CUevent *event, unsigned int flags) {
    ENTER();
    return cudart_result(DRIVER(cuEventCreate)(event, flags));
}

EXPORT cudaError_t cudaEventCreate(CUevent *event) {
    return cudaEventCreateWithFlags(event, 0);
}

EXPORT cudaError_t cudaEventDestroy(CUevent event) {
    return cudart_result(DRIVER(cuEventDestroy_v2)(event));
}

EXPORT cudaError_t cudaEventRecord(CUevent event, CUstream stream) {
    ENTER();
    return cudart_result(DRIVER(cuEventRecord)(event, stream));
}

EXPORT cudaError_t cudaEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
    ENTER();
    return cudart_result(DRIVER(cuEventRecordWithFlags)(event, stream, flags));
}

EXPORT cudaError_t cudaEventQuery(CUevent event) {
    return cudart_result(DRIVER(cuEventQuery)(event));
}

EXPORT cudaError_t cudaEventSynchronize(CUevent event) {
    return cudart_result(DRIVER(cuEventSynchronize)(event));
}

EXPORT cudaError_t cudaEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    return cudart_result(DRIVER(cuEventElapsedTime)(milliseconds, start, end));
}

EXPORT cudaError_t cudaIpcGetEventHandle(CUipcEventHandle *handle, CUevent event) {
    ENTER();
    return cudart_result(DRIVER(cuIpcGetEventHandle)(handle, event));
}

EXPORT cudaError_t cudaIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle) {
    ENTER();
    return cudart_result(DRIVER(cuIpcOpenEventHandle)(event, handle));
}

EXPORT cudaError_t cudaStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    ENTER();
    return cudart_result(DRIVER(cuStreamIsCapturing)(stream, status));
}

EXPORT cudaError_t cudaStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
    ENTER();
    return cudart_result(DRIVER(cuStreamBeginCapture_v2)(stream, mode));
}

EXPORT cudaError_t cudaStreamEndCapture(CUstream stream, CUgraph *graph) {
    return cudart_result(DRIVER(cuStreamEndCapture)(stream, graph));
}

EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    ENTER();
    return cudart_result(DRIVER(cuThreadExchangeStreamCaptureMode)(mode));
}

EXPORT cudaError_t cudaStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                            CUgraph *graph, const CUgraphNode **nodes,
                                            const CUgraphEdgeData **edges, size_t *count) {
    ENTER();
    return cudart_result(DRIVER(cuStreamGetCaptureInfo_v3)(stream, status, id, graph, nodes, edges, count));
}

EXPORT cudaError_t cudaGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph,
                                                 unsigned long long flags) {
    return cudart_result(DRIVER(cuGraphInstantiateWithFlags)(executable, graph, flags));
}

EXPORT cudaError_t cudaGraphInstantiate(CUgraphExec *executable, CUgraph graph, unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(executable, graph, flags);
}

EXPORT cudaError_t cudaGraphLaunch(CUgraphExec executable, CUstream stream) {
    return cudart_result(DRIVER(cuGraphLaunch)(executable, stream));
}

EXPORT cudaError_t cudaGraphExecDestroy(CUgraphExec executable) {
    return cudart_result(DRIVER(cuGraphExecDestroy)(executable));
}

EXPORT cudaError_t cudaGraphDestroy(CUgraph graph) {
    return cudart_result(DRIVER(cuGraphDestroy)(graph));
}

EXPORT cudaError_t cudaGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    return cudart_result(DRIVER(cuGraphGetNodes)(graph, nodes, count));
}

EXPORT cudaError_t cudaUserObjectCreate(CUuserObject *object, void *pointer, CUhostFn destroy,
                                        unsigned int references, unsigned int flags) {
    return cudart_result(DRIVER(cuUserObjectCreate)(object, pointer, destroy, references, flags));
}

EXPORT cudaError_t cudaUserObjectRelease(CUuserObject object, unsigned int count) {
    return cudart_result(DRIVER(cuUserObjectRelease)(object, count));
}

EXPORT cudaError_t cudaGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                             unsigned int flags) {
    return cudart_result(DRIVER(cuGraphRetainUserObject)(graph, object, count, flags));
}
