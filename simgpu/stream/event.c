/* Events: marks in a stream that other streams wait for and that have a time. */
#include "stream/capture.h"
#include "time/clock.h"
#include "pool/pool.h"
#include "stream/shared_event.h"
#include "stream/stream.h"
#include "stream/work.h"

struct sim_slab sim_events = SIM_SLAB(struct CUevent_st, 128, 1u << 20);

static CUresult check(CUevent event) {
    return event != NULL && sim_is_live(&sim_events, event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

SIM_EXPORT CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    SIM_ENTER_CONTEXT(context);
    const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (event == NULL || (flags & ~known) != 0) return CUDA_ERROR_INVALID_VALUE;
    if ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    bool is_shared = (flags & CU_EVENT_INTERPROCESS) != 0;
    SIM_LOCKED();
    CUevent made = sim_new(&sim_events);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    made->context = context;
    made->flags = flags;
    made->shared = is_shared ? sim_shared_event_new() : NULL;
    if (is_shared && made->shared == NULL) {
        sim_delete(&sim_events, made);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *event = made;
    return CUDA_SUCCESS;
}

void sim_event_delete(CUevent event) {
    if (event->capture != NULL) sim_capture_leave_event(event);
    if (event->shared != NULL) sim_shared_event_close(event->shared);
    sim_delete(&sim_events, event);
}

SIM_EXPORT CUresult cuEventDestroy_v2(CUevent event) {
    SIM_ENTER();
    SIM_LOCKED();
    SIM_TRY(check(event));
    sim_event_delete(event);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuEventDestroy(CUevent event) {
    return cuEventDestroy_v2(event);
}

SIM_EXPORT CUresult cuEventRecord(CUevent event, CUstream named) {
    SIM_ENTER();
    CUstream stream;
    SIM_TRY(check(event));
    SIM_TRY(sim_stream_of(named, &stream));
    if (sim_root(event->context) != sim_root(stream->context)) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture != NULL) return sim_capture_record(stream, event);
    if (event->capture != NULL) {
        SIM_LOCKED();
        sim_capture_leave_event(event);
    }
    struct sim_work work = {.kind = SIM_WORK_RECORD, .event = event};
    return sim_submit(stream, &work);
}

SIM_EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream named, unsigned int flags) {
    SIM_ENTER();
    CUstream stream;
    if (flags > CU_EVENT_RECORD_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
    if (flags == CU_EVENT_RECORD_DEFAULT) return cuEventRecord(event, named);
    SIM_TRY(check(event));
    SIM_TRY(sim_stream_of(named, &stream));
    /* Inside a capture an external recording is a node of its own. */
    struct sim_work work = {.kind = SIM_WORK_RECORD, .event = event};
    return sim_submit(stream, &work);
}

SIM_EXPORT CUresult cuStreamWaitEvent(CUstream named, CUevent event, unsigned int flags) {
    SIM_ENTER();
    CUstream stream;
    if (flags > CU_EVENT_WAIT_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(event));
    SIM_TRY(sim_stream_of(named, &stream));
    if (flags == CU_EVENT_WAIT_DEFAULT && event->capture != NULL) return sim_capture_await(stream, event);
    if (event->shared == NULL && !event->is_recorded && event->unsettled == 0) return CUDA_SUCCESS;
    struct sim_work work = {.kind = SIM_WORK_AWAIT, .event = event};
    return sim_submit(stream, &work);
}

/* All that was queued in the context so far; what waits behind host functions is waited for first. */
SIM_EXPORT CUresult cuCtxRecordEvent(CUcontext context, CUevent event) {
    SIM_ENTER();
    SIM_TRY(check(event));
    if (context == NULL) SIM_TRY(sim_current_context(&context));
    if (!sim_is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    if (sim_root(event->context) != sim_root(context)) return CUDA_ERROR_INVALID_HANDLE;
    if (__atomic_load_n(&context->deferred, __ATOMIC_ACQUIRE) > 0) sim_context_wait(context);
    SIM_LOCKED();
    sim_event_mark(event, context->gpu, context->end_ns);
    /* A wait for the whole context includes this one. */
    if (event->at_ns > context->end_ns) context->end_ns = event->at_ns;
    if (event->shared != NULL) sim_shared_event_record(event->shared, 0, context->gpu, event->at_ns);
    return CUDA_SUCCESS;
}

/* Every stream that the context has waits. */
SIM_EXPORT CUresult cuCtxWaitEvent(CUcontext context, CUevent event) {
    SIM_ENTER();
    SIM_TRY(check(event));
    if (context == NULL) SIM_TRY(sim_current_context(&context));
    if (!sim_is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    for (uint32_t i = 0; i < sim_streams.used; i++) {
        CUstream stream = sim_at(&sim_streams, i);
        if (stream != NULL && stream->context == context && !stream->is_detached)
            SIM_TRY(cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_DEFAULT));
    }
    return CUDA_SUCCESS;
}

static bool is_over(CUevent event) {
    if (event->shared != NULL) return sim_shared_event_is_over(event->shared, SIM_LAST_RECORDING);
    sim_lock();
    bool is_settled = event->unsettled == 0, is_recorded = event->is_recorded;
    uint64_t at_ns = event->at_ns;
    sim_unlock();
    if (!is_recorded || !sim_driver.has_backing) return is_settled;
    return is_settled && sim_clock_has_come(event->context->gpu, at_ns);
}

SIM_EXPORT CUresult cuEventQuery(CUevent event) {
    SIM_ENTER();
    SIM_TRY(check(event));
    if (event->capture != NULL) return CUDA_ERROR_CAPTURED_EVENT;
    return is_over(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

SIM_EXPORT CUresult cuEventSynchronize(CUevent event) {
    SIM_ENTER();
    SIM_TRY(check(event));
    if (event->capture != NULL) return CUDA_ERROR_CAPTURED_EVENT;
    if (event->shared != NULL) {
        sim_shared_event_wait(event->shared);
        return CUDA_SUCCESS;
    }
    sim_event_settle(event);
    if (event->is_recorded && sim_driver.has_backing) sim_clock_wait(event->context->gpu, event->at_ns);
    sim_pools_trim(event->context->gpu);
    return sim_outcome();
}

SIM_EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    SIM_ENTER();
    if (milliseconds == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(start));
    SIM_TRY(check(end));
    if (((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0) return CUDA_ERROR_INVALID_HANDLE;
    if (!start->is_recorded || !end->is_recorded) return CUDA_ERROR_INVALID_HANDLE;
    if (sim_root(start->context) != sim_root(end->context)) return CUDA_ERROR_INVALID_HANDLE;
    if (!is_over(start) || !is_over(end)) return CUDA_ERROR_NOT_READY;
    unsigned gpu = start->context->gpu;
    uint64_t start_ns = sim_clock_real_ns(gpu, start->at_ns), end_ns = sim_clock_real_ns(gpu, end->at_ns);
    *milliseconds = (float)((double)(int64_t)(end_ns - start_ns) / 1e6);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}
