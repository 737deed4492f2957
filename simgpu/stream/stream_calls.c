/* The driver's calls on streams. */
#include "stream/capture.h"
#include "stream/stream.h"
#include "stream/work.h"

#define GREATEST_PRIORITY (-5)

int sim_stream_priority(int priority) {
    if (priority > 0) return 0;
    return priority < GREATEST_PRIORITY ? GREATEST_PRIORITY : priority;
}

SIM_EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    SIM_ENTER_CONTEXT(context);
    if (stream == NULL || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    *stream = sim_stream_new(context, flags, sim_stream_priority(priority));
    return *stream == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    return cuStreamCreateWithPriority(stream, flags, 0);
}

/* Destroying does not wait, but what was queued is still done. */
SIM_EXPORT CUresult cuStreamDestroy_v2(CUstream named) {
    SIM_ENTER();
    CUstream stream;
    CUresult result = sim_stream_of(named, &stream);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_STREAM_DETACHED) return result;
    if (named <= CU_STREAM_PER_THREAD || stream->is_internal) return CUDA_ERROR_INVALID_HANDLE;
    sim_deferred_wait(stream, stream->deferred_count);
    SIM_LOCKED();
    if (stream->capture != NULL) sim_capture_abandon(stream);
    sim_delete(&sim_streams, stream);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamDestroy(CUstream stream) {
    return cuStreamDestroy_v2(stream);
}

SIM_EXPORT CUresult cuStreamSynchronize(CUstream named) {
    SIM_ENTER();
    CUstream stream;
    SIM_TRY(sim_stream_of(named, &stream));
    SIM_TRY(sim_capture_forbids(stream));
    sim_stream_wait(stream);
    return sim_outcome();
}

SIM_EXPORT CUresult cuStreamQuery(CUstream named) {
    SIM_ENTER();
    CUstream stream;
    SIM_TRY(sim_stream_of(named, &stream));
    SIM_TRY(sim_capture_forbids(stream));
    return sim_stream_is_done(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

SIM_EXPORT CUresult cuStreamGetPriority(CUstream named, int *priority) {
    SIM_ENTER();
    CUstream stream;
    if (priority == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_stream_of(named, &stream));
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamGetFlags(CUstream named, unsigned int *flags) {
    SIM_ENTER();
    CUstream stream;
    if (flags == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_stream_of(named, &stream));
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamGetId(CUstream named, unsigned long long *id) {
    SIM_ENTER();
    CUstream stream;
    if (id == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_stream_of(named, &stream));
    *id = stream->id;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamGetCtx(CUstream named, CUcontext *context) {
    SIM_ENTER();
    CUstream stream;
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_stream_of(named, &stream));
    *context = stream->context;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamGetDevice(CUstream named, CUdevice *device) {
    SIM_ENTER();
    CUstream stream;
    if (device == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_stream_of(named, &stream));
    *device = stream->context->device;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamAddCallback(CUstream named, CUstreamCallback callback, void *data,
                                        unsigned int flags) {
    SIM_ENTER();
    CUstream stream;
    if (callback == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_stream_of(named, &stream));
    if (stream->capture != NULL) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct sim_work work = {.kind = SIM_WORK_HOST,
                            .host = {.callback = callback, .stream = named, .data = data}};
    return sim_submit(stream, &work);
}

SIM_EXPORT CUresult cuLaunchHostFunc(CUstream named, CUhostFn function, void *data) {
    SIM_ENTER();
    CUstream stream;
    if (function == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_stream_of(named, &stream));
    struct sim_work work = {.kind = SIM_WORK_HOST, .host = {.function = function, .data = data}};
    return sim_submit(stream, &work);
}

SIM_EXPORT CUresult cuLaunchHostFunc_v2(CUstream named, CUhostFn function, void *data,
                                        unsigned int sync_mode) {
    if (sync_mode > CU_HOST_TASK_SPINWAIT) return CUDA_ERROR_INVALID_VALUE;
    return cuLaunchHostFunc(named, function, data);
}

SIM_EXPORT CUresult cuStreamAttachMemAsync(CUstream named, CUdeviceptr address, size_t bytes,
                                           unsigned int flags) {
    SIM_ENTER();
    CUstream stream;
    (void)bytes;
    if (address == 0 || flags > CU_MEM_ATTACH_SINGLE) return CUDA_ERROR_INVALID_VALUE;
    return sim_stream_of(named, &stream);
}

/* Attributes are stored and returned. */
#define ATTRIBUTE_COUNT (sizeof(((CUstream)0)->attribute) / sizeof(CUstreamAttrValue))

SIM_EXPORT CUresult cuStreamGetAttribute(CUstream named, CUstreamAttrID name, CUstreamAttrValue *value) {
    SIM_ENTER();
    CUstream stream;
    if (value == NULL || (unsigned)name >= ATTRIBUTE_COUNT) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_stream_of(named, &stream));
    SIM_LOCKED();
    *value = stream->attribute[name];
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamSetAttribute(CUstream named, CUstreamAttrID name,
                                         const CUstreamAttrValue *value) {
    SIM_ENTER();
    CUstream stream;
    if (value == NULL || (unsigned)name >= ATTRIBUTE_COUNT) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_stream_of(named, &stream));
    SIM_LOCKED();
    stream->attribute[name] = *value;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamCopyAttributes(CUstream to_named, CUstream from_named) {
    SIM_ENTER();
    CUstream to, from;
    SIM_TRY(sim_stream_of(to_named, &to));
    SIM_TRY(sim_stream_of(from_named, &from));
    SIM_LOCKED();
    for (size_t i = 0; i < ATTRIBUTE_COUNT; i++)
        to->attribute[i] = from->attribute[i];
    return CUDA_SUCCESS;
}
