/* Work that waits behind a host function, and the one thread that runs host functions. It is started by the
 * first of them; a program that has none has no thread of ours. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "time/clock.h"
#include "memory/range.h"
#include "stream/shared_event.h"
#include "stream/work.h"

/* Poll interval of the thread, for device time and for a word that a stream waits for. */
#define REST_NS 200000

struct sim_deferred {
    struct sim_deferred *next;
    struct sim_work work;
};

static pthread_mutex_t wake_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t has_work, has_finished;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool is_started;
static uint64_t change_count; /* of queues; under wake_mutex */

static bool is_due(CUstream stream) {
    return !sim_driver.has_backing || sim_clock_has_come(stream->context->gpu, sim_stream_begin_ns(stream));
}

static bool value_is_there(const struct sim_value *value) {
    uint64_t seen = value->bytes == 4 ? __atomic_load_n((uint32_t *)value->at, __ATOMIC_SEQ_CST)
                                      : __atomic_load_n((uint64_t *)value->at, __ATOMIC_SEQ_CST);
    uint64_t wanted = value->value;
    switch (value->flags & 3u) {
    case CU_STREAM_WAIT_VALUE_EQ:
        return seen == wanted;
    case CU_STREAM_WAIT_VALUE_AND:
        return (seen & wanted) != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
        return ~(seen | wanted) != 0;
    default:
        return value->bytes == 4 ? (int32_t)(uint32_t)(seen - wanted) >= 0 : (int64_t)(seen - wanted) >= 0;
    }
}

static bool has_been_recorded(const struct sim_work *work) {
    CUevent event = work->event;
    if (!sim_is_live(&sim_events, event)) return true;
    return event->shared == NULL ? event->unsettled == 0
                                 : sim_shared_event_is_over(event->shared, work->recording);
}

static bool can_begin(CUstream stream, const struct sim_work *work) {
    switch (work->kind) {
    case SIM_WORK_HOST:
        return is_due(stream);
    case SIM_WORK_CHECK:
        return !sim_driver.has_backing || value_is_there(&work->value);
    case SIM_WORK_AWAIT:
        return has_been_recorded(work);
    default:
        return true;
    }
}

static CUstream next_stream(void) {
    for (uint32_t i = 0; i < sim_streams.used; i++) {
        CUstream stream = sim_at(&sim_streams, i);
        if (stream != NULL && stream->first != NULL && can_begin(stream, &stream->first->work)) return stream;
    }
    return NULL;
}

static void call_host(const struct sim_host_call *call) {
    if (call->function != NULL)
        call->function(call->data);
    else
        call->callback(call->stream, CUDA_SUCCESS, call->data);
}

/* Under sim_lock before and after, free of it while the client's function runs. */
static void run_first(CUstream stream) {
    struct sim_deferred *deferred = stream->first;
    if (deferred->work.kind == SIM_WORK_RECORD && sim_is_live(&sim_events, deferred->work.event))
        deferred->work.event->unsettled--;
    sim_charge_time(stream, &deferred->work);
    sim_unlock();
    if (deferred->work.kind == SIM_WORK_HOST)
        call_host(&deferred->work.host);
    else
        sim_perform(&deferred->work);
    sim_lock();
    stream->first = deferred->next;
    if (stream->first == NULL) stream->last = NULL;
    stream->finished_count++;
    __atomic_fetch_sub(&stream->context->deferred, 1, __ATOMIC_ACQ_REL);
    free(deferred);
}

static bool run_one(void) {
    SIM_LOCKED();
    CUstream stream = next_stream();
    if (stream != NULL) run_first(stream);
    return stream != NULL;
}

static bool is_anything_queued(void) {
    SIM_LOCKED();
    for (uint32_t i = 0; i < sim_streams.used; i++) {
        CUstream stream = sim_at(&sim_streams, i);
        if (stream != NULL && stream->first != NULL) return true;
    }
    return false;
}

static void announce(pthread_cond_t *condition) {
    pthread_mutex_lock(&wake_mutex);
    change_count++;
    pthread_cond_broadcast(condition);
    pthread_mutex_unlock(&wake_mutex);
}

/* Sleep until a queue changed; while something is queued, no longer than a rest. */
static void rest(uint64_t *seen_count) {
    bool is_queued = is_anything_queued();
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += REST_NS;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&wake_mutex);
    int result = 0;
    while (change_count == *seen_count && result == 0)
        result = is_queued ? pthread_cond_timedwait(&has_work, &wake_mutex, &until)
                           : pthread_cond_wait(&has_work, &wake_mutex);
    *seen_count = change_count;
    pthread_mutex_unlock(&wake_mutex);
}

static void *serve(void *unused) {
    uint64_t seen_count = 0;
    for (;;) {
        while (run_one())
            announce(&has_finished);
        rest(&seen_count);
    }
    return unused;
}

static void start(void) {
    pthread_condattr_t monotonic;
    pthread_attr_t detached;
    pthread_t thread;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&has_work, &monotonic);
    pthread_cond_init(&has_finished, &monotonic);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    is_started = pthread_create(&thread, &detached, serve, NULL) == 0;
    pthread_attr_destroy(&detached);
    pthread_condattr_destroy(&monotonic);
}

static struct sim_deferred *copy_of(const struct sim_work *work) {
    struct sim_deferred *deferred = calloc(1, sizeof(*deferred));
    if (deferred != NULL) deferred->work = *work;
    return deferred;
}

/* Later recordings of an event do not change what this work waits for or completes. */
static void name_recording(struct sim_work *work) {
    struct sim_shared_event *shared = work->event->shared;
    if (shared == NULL) return;
    work->recording =
        work->kind == SIM_WORK_RECORD ? sim_shared_event_announce(shared) : sim_shared_event_last(shared);
}

CUresult sim_defer(CUstream stream, const struct sim_work *work) {
    pthread_once(&once, start);
    struct sim_deferred *deferred = is_started ? copy_of(work) : NULL;
    if (deferred == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    if (work->kind == SIM_WORK_RECORD) work->event->unsettled++;
    if (work->kind == SIM_WORK_RECORD || work->kind == SIM_WORK_AWAIT) name_recording(&deferred->work);
    if (stream->last != NULL)
        stream->last->next = deferred;
    else
        stream->first = deferred;
    stream->last = deferred;
    stream->deferred_count++;
    __atomic_fetch_add(&stream->context->deferred, 1, __ATOMIC_ACQ_REL);
    announce(&has_work);
    return CUDA_SUCCESS;
}

static bool has_run(CUstream stream, uint64_t count) {
    SIM_LOCKED();
    return !sim_is_live(&sim_streams, stream) || stream->finished_count >= count;
}

static bool is_settled(CUevent event) {
    SIM_LOCKED();
    return !sim_is_live(&sim_events, event) || event->unsettled == 0;
}

/* `has_finished` is signalled after every work, so a change between the check and the sleep is not missed. */
static uint64_t changes(void) {
    pthread_mutex_lock(&wake_mutex);
    uint64_t count = change_count;
    pthread_mutex_unlock(&wake_mutex);
    return count;
}

static void sleep_until_change(uint64_t seen_count) {
    pthread_mutex_lock(&wake_mutex);
    while (change_count == seen_count)
        pthread_cond_wait(&has_finished, &wake_mutex);
    pthread_mutex_unlock(&wake_mutex);
}

void sim_deferred_wait(CUstream stream, uint64_t count) {
    uint64_t seen_count = 0;
    if (count == 0) return;
    while (seen_count = changes(), !has_run(stream, count))
        sleep_until_change(seen_count);
}

void sim_event_settle(CUevent event) {
    uint64_t seen_count = 0;
    if (event->unsettled == 0) return;
    while (seen_count = changes(), !is_settled(event))
        sleep_until_change(seen_count);
}
