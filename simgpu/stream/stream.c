/* Which stream a call means, and when its work may begin and ends. */
#include "stream/stream.h"

#include "stream/capture.h"
#include "time/clock.h"
#include "pool/pool.h"
#include "stream/work.h"

struct sim_slab sim_streams = SIM_SLAB(struct CUstream_st, 4096, 1u << 16);
__thread bool sim_is_per_thread_call;

CUstream sim_stream_new(CUcontext context, unsigned flags, int priority) {
    static unsigned long long last_id;
    CUstream stream = sim_new(&sim_streams);
    if (stream == NULL) return NULL;
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority;
    stream->keeps_step = (flags & CU_STREAM_NON_BLOCKING) == 0;
    stream->is_internal = context->legacy == NULL;
    stream->id = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
    return stream;
}

void sim_streams_delete_of(CUcontext context) {
    for (uint32_t i = 0; i < sim_streams.used; i++) {
        CUstream stream = sim_at(&sim_streams, i);
        if (stream == NULL || stream->context != context) continue;
        if (stream->capture != NULL) sim_capture_abandon(stream);
        sim_delete(&sim_streams, stream);
    }
    for (uint32_t i = 0; i < sim_events.used; i++) {
        CUevent event = sim_at(&sim_events, i);
        if (event != NULL && event->context == context) sim_event_delete(event);
    }
}

static void detach(CUstream stream, CUcontext to) {
    if (stream->capture != NULL) sim_capture_abandon(stream);
    if (stream->is_internal) {
        sim_delete(&sim_streams, stream);
        return;
    }
    stream->context = to;
    stream->is_detached = true;
}

void sim_streams_detach(CUcontext from, CUcontext to) {
    for (uint32_t i = 0; i < sim_streams.used; i++) {
        CUstream stream = sim_at(&sim_streams, i);
        if (stream != NULL && stream->context == from) detach(stream, to);
    }
    for (uint32_t i = 0; i < sim_events.used; i++) {
        CUevent event = sim_at(&sim_events, i);
        if (event != NULL && event->context == from) event->context = to;
    }
}

static uint64_t thread_number(void) {
    static uint64_t last;
    static __thread uint64_t number;
    if (number == 0) number = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
    return number;
}

static CUstream find_own(CUcontext context, uint64_t thread) {
    for (uint32_t i = 0; i < sim_streams.used; i++) {
        CUstream stream = sim_at(&sim_streams, i);
        if (stream != NULL && stream->owner_thread == thread && stream->context == context) return stream;
    }
    return NULL;
}

static CUstream find_or_make_own(CUcontext context) {
    SIM_LOCKED();
    uint64_t thread = thread_number();
    CUstream stream = find_own(context, thread);
    if (stream != NULL) return stream;
    stream = sim_stream_new(context, 0, 0);
    if (stream == NULL) return NULL;
    stream->owner_thread = thread;
    stream->is_internal = true;
    return stream;
}

/* This thread's default stream in a context. */
static CUstream own_stream(CUcontext context) {
    static __thread CUstream last;
    static __thread unsigned long long last_context;
    if (last_context == context->id) return last;
    CUstream stream = find_or_make_own(context);
    if (stream == NULL) return NULL;
    last = stream;
    last_context = context->id;
    return stream;
}

CUresult sim_default_stream_of(CUstream named, CUstream *stream) {
    CUcontext context;
    SIM_TRY(sim_current_context(&context));
    bool is_own = named == CU_STREAM_PER_THREAD || (named == NULL && sim_is_per_thread_call);
    *stream = is_own ? own_stream(context) : context->legacy;
    return *stream == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static uint64_t later(uint64_t a_ns, uint64_t b_ns) {
    return a_ns > b_ns ? a_ns : b_ns;
}

uint64_t sim_stream_begin_ns(CUstream stream) {
    CUcontext context = stream->context;
    if (stream == context->legacy) return context->blocking_end_ns;
    return stream->keeps_step ? later(stream->end_ns, context->legacy->end_ns) : stream->end_ns;
}

void sim_stream_extend(CUstream stream, uint64_t end_ns) {
    CUcontext context = stream->context;
    stream->end_ns = later(stream->end_ns, end_ns);
    context->end_ns = later(context->end_ns, end_ns);
    if (stream->keeps_step) context->blocking_end_ns = later(context->blocking_end_ns, end_ns);
}

static uint64_t end_ns(CUstream stream) {
    SIM_LOCKED();
    return stream == stream->context->legacy ? stream->context->blocking_end_ns : stream->end_ns;
}

static uint64_t deferred_count(CUstream stream) {
    SIM_LOCKED();
    return stream->deferred_count;
}

void sim_stream_wait(CUstream stream) {
    sim_deferred_wait(stream, deferred_count(stream));
    if (sim_driver.has_backing) sim_clock_wait(stream->context->gpu, end_ns(stream));
    sim_pools_trim(stream->context->gpu);
}

bool sim_stream_is_done(CUstream stream) {
    sim_lock();
    bool is_idle = stream->finished_count == stream->deferred_count;
    sim_unlock();
    return is_idle && (!sim_driver.has_backing || sim_clock_has_come(stream->context->gpu, end_ns(stream)));
}

void sim_context_wait(CUcontext context) {
    for (uint32_t i = 0; __atomic_load_n(&context->deferred, __ATOMIC_ACQUIRE) > 0 && i < sim_streams.used;
         i++) {
        CUstream stream = sim_at(&sim_streams, i);
        if (stream != NULL && stream->context == context) sim_deferred_wait(stream, deferred_count(stream));
    }
    sim_lock();
    uint64_t at_ns = context->end_ns;
    sim_unlock();
    if (sim_driver.has_backing) sim_clock_wait(context->gpu, at_ns);
    sim_pools_trim(context->gpu);
}
