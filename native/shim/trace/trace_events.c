/* How long commands took: a pair of events around each and, for each context, an anchor: an event whose time
 * on the host's clock was measured. A float of milliseconds resolves microseconds only for a few seconds, so
 * the anchor is renewed every second of GPU time. The thread that changes the state of a pair or an anchor
 * owns it. */
#include "trace/trace_events.h"

#include <stddef.h>

#include "clock.h"
#include "functions.h"
#include "trace/trace_log.h"
#include "trace/trace_shapes.h"

#define PAIRS         4096u
#define ANCHORS       64u
#define OPEN_PROBES   32u
#define UNREADY_LOOKS 16u
#define SIGHTS        3u
#define SLACK_NS      20000ull
#define MOVE_AFTER_NS 1000000000ull

enum state { FREE, BUSY, PENDING };

struct pgpu_trace_pair {
    CUcontext context; /* the events' context; NULL: it has no events yet */
    CUevent start, end;
    struct pgpu_trace_record *record;
    uint64_t launched_ns; /* just before the driver call */
    uint32_t shape;
};

struct anchor {
    CUcontext context; /* NULL: there is none here */
    CUstream stream;   /* a stream of its own, so that no work of the job waits for it */
    CUevent at, next;
    uint64_t at_ns;
    uint64_t doubt_ns; /* uncertainty of `at_ns` */
    uint32_t state;
    bool is_next_recorded;
};

struct measured {
    uint64_t start_ns; /* 0 unknown */
    uint64_t duration_ns;
};

static struct pgpu_trace_pair pairs[PAIRS];
static uint32_t states[PAIRS]; /* separate, so that scanning all of them is fast */
static uint32_t cursor;
static struct anchor anchors[ANCHORS];

static bool take(uint32_t *state, uint32_t from) {
    return __atomic_compare_exchange_n(state, &from, BUSY, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static void give(uint32_t *state, uint32_t to) {
    __atomic_store_n(state, to, __ATOMIC_RELEASE);
}

static uint32_t *state_of(const struct pgpu_trace_pair *pair) {
    return &states[pair - pairs];
}

/* The trace's own calls are made in the pair's context and in relaxed capture mode, so that they disturb no
 * capture. */
struct visit {
    CUstreamCaptureMode mode;
    bool is_elsewhere;
};

static struct visit enter(CUcontext context) {
    struct visit visit = {.mode = CU_STREAM_CAPTURE_MODE_RELAXED};
    CUcontext current = NULL;
    PGPU_REAL(cuThreadExchangeStreamCaptureMode)(&visit.mode);
    PGPU_REAL(cuCtxGetCurrent)(&current);
    visit.is_elsewhere = current != context && PGPU_REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS;
    return visit;
}

static void leave(struct visit *visit) {
    CUcontext popped;
    if (visit->is_elsewhere) PGPU_REAL(cuCtxPopCurrent_v2)(&popped);
    PGPU_REAL(cuThreadExchangeStreamCaptureMode)(&visit->mode);
}

static bool has_passed(CUevent event) {
    return PGPU_REAL(cuEventQuery)(event) == CUDA_SUCCESS;
}

static bool read_elapsed(CUevent from, CUevent to, uint64_t *elapsed_ns) {
    float milliseconds = 0;
    CUresult result = pgpu_driver_has(PGPU_FUNCTION_cuEventElapsedTime_v2)
                          ? PGPU_REAL(cuEventElapsedTime_v2)(&milliseconds, from, to)
                          : PGPU_REAL(cuEventElapsedTime)(&milliseconds, from, to);
    *elapsed_ns = (uint64_t)(int64_t)((double)milliseconds * 1e6);
    return result == CUDA_SUCCESS;
}

/* Measure when the GPU passes an event on an idle stream, on the host's clock; returns the uncertainty. */
static uint64_t sight(struct anchor *anchor) {
    uint64_t before_ns = pgpu_now_ns();
    if (PGPU_REAL(cuEventRecord)(anchor->at, anchor->stream) != CUDA_SUCCESS ||
        PGPU_REAL(cuEventSynchronize)(anchor->at) != CUDA_SUCCESS)
        return UINT64_MAX;
    uint64_t doubt_ns = pgpu_now_ns() - before_ns;
    anchor->at_ns = before_ns + doubt_ns / 2;
    anchor->doubt_ns = doubt_ns;
    return doubt_ns;
}

/* Several times, since the first event may have waited for other contexts' time slices. */
static bool is_sighted(struct anchor *anchor) {
    uint64_t best_ns = sight(anchor);
    for (unsigned more = 1; more < SIGHTS && best_ns != UINT64_MAX; more++) {
        uint64_t doubt_ns = sight(anchor);
        if (doubt_ns <= best_ns) break;
    }
    return best_ns != UINT64_MAX;
}

static void destroy(struct anchor *anchor) {
    if (anchor->at != NULL) PGPU_REAL(cuEventDestroy_v2)(anchor->at);
    if (anchor->next != NULL) PGPU_REAL(cuEventDestroy_v2)(anchor->next);
    if (anchor->stream != NULL) PGPU_REAL(cuStreamDestroy_v2)(anchor->stream);
    anchor->at = anchor->next = NULL;
    anchor->stream = NULL;
    anchor->is_next_recorded = false;
    __atomic_store_n(&anchor->context, NULL, __ATOMIC_RELEASE);
}

static bool make(struct anchor *anchor, CUcontext context) {
    bool is_made = PGPU_REAL(cuStreamCreate)(&anchor->stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
                   PGPU_REAL(cuEventCreate)(&anchor->at, CU_EVENT_DEFAULT) == CUDA_SUCCESS &&
                   PGPU_REAL(cuEventCreate)(&anchor->next, CU_EVENT_DEFAULT) == CUDA_SUCCESS &&
                   is_sighted(anchor);
    if (is_made)
        __atomic_store_n(&anchor->context, context, __ATOMIC_RELEASE);
    else
        destroy(anchor);
    return is_made;
}

static struct anchor *find_anchor(CUcontext context) {
    for (unsigned i = 0; i < ANCHORS; i++)
        if (__atomic_load_n(&anchors[i].context, __ATOMIC_ACQUIRE) == context) return &anchors[i];
    return NULL;
}

static bool has_anchor(const struct pgpu_place *place) {
    if (find_anchor(place->context) != NULL) return true;
    for (unsigned i = 0; i < ANCHORS; i++) {
        if (!take(&anchors[i].state, FREE)) continue;
        bool was_empty = anchors[i].context == NULL;
        bool is_done = was_empty && make(&anchors[i], place->context);
        give(&anchors[i].state, FREE);
        if (is_done) pgpu_trace_context(place, pgpu_slice_context_bytes(place->gpu));
        if (was_empty) return is_done;
    }
    return false;
}

/* Give a pair events of this context, and make them if it has none. */
static bool has_events(struct pgpu_trace_pair *pair, CUcontext context) {
    if (pair->context != NULL) return pair->context == context;
    if (PGPU_REAL(cuEventCreate)(&pair->start, CU_EVENT_DEFAULT) != CUDA_SUCCESS) return false;
    if (PGPU_REAL(cuEventCreate)(&pair->end, CU_EVENT_DEFAULT) != CUDA_SUCCESS) {
        PGPU_REAL(cuEventDestroy_v2)(pair->start);
        return false;
    }
    pair->context = context;
    return true;
}

static struct pgpu_trace_pair *find_pair(CUcontext context) {
    uint32_t first = __atomic_fetch_add(&cursor, 1, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < OPEN_PROBES; i++) {
        uint32_t at = (first + i) % PAIRS;
        if (!take(&states[at], FREE)) continue;
        if (has_events(&pairs[at], context)) return &pairs[at];
        give(&states[at], FREE);
    }
    return NULL;
}

static bool record(CUevent event, const struct pgpu_trace_command *command) {
    return (command->is_per_thread ? PGPU_REAL(cuEventRecord_ptsz)(event, command->stream)
                                   : PGPU_REAL(cuEventRecord)(event, command->stream)) == CUDA_SUCCESS;
}

static struct pgpu_trace_pair *open_here(const struct pgpu_trace_command *command) {
    CUcontext context = command->place.context;
    struct pgpu_trace_pair *pair = has_anchor(&command->place) ? find_pair(context) : NULL;
    if (pair == NULL) {
        pgpu_trace_settle();
        pair = find_pair(context);
    }
    if (pair == NULL || record(pair->start, command)) return pair;
    give(state_of(pair), FREE);
    return NULL;
}

struct pgpu_trace_pair *pgpu_trace_pair_open(const struct pgpu_trace_command *command) {
    struct visit visit = enter(command->place.context);
    struct pgpu_trace_pair *pair = open_here(command);
    leave(&visit);
    if (pair != NULL) pair->launched_ns = pgpu_now_ns();
    return pair;
}

void pgpu_trace_pair_drop(struct pgpu_trace_pair *pair) {
    give(state_of(pair), FREE);
}

void pgpu_trace_pair_close(struct pgpu_trace_pair *pair, const struct pgpu_trace_command *command,
                           struct pgpu_trace_record *row, uint32_t shape) {
    bool is_recorded = record(pair->end, command);
    pair->record = row;
    pair->shape = shape;
    pgpu_trace_count(is_recorded ? &pgpu_trace_log()->measured_calls : &pgpu_trace_log()->unmeasured, 1);
    give(state_of(pair), is_recorded ? PENDING : FREE);
}

/* No command starts before the driver call: on an idle stream the first event may have passed long before, if
 * this thread was preempted in between. Differences within the clocks' uncertainty are left as they are. */
static void correct(const struct pgpu_trace_pair *pair, uint64_t doubt_ns, struct measured *measured) {
    uint64_t late_ns = pair->launched_ns - measured->start_ns;
    bool is_late = measured->start_ns != 0 && pair->launched_ns > measured->start_ns + doubt_ns + SLACK_NS;
    if (!is_late || late_ns >= measured->duration_ns) return;
    measured->start_ns += late_ns;
    measured->duration_ns -= late_ns;
}

/* False: another thread is moving the anchor. */
static bool compute_start(const struct pgpu_trace_pair *pair, struct measured *measured) {
    struct anchor *anchor = find_anchor(pair->context);
    uint64_t after_ns;
    if (anchor == NULL) return true;
    if (!take(&anchor->state, FREE)) return false;
    if (read_elapsed(anchor->at, pair->start, &after_ns)) measured->start_ns = anchor->at_ns + after_ns;
    correct(pair, anchor->doubt_ns, measured);
    give(&anchor->state, FREE);
    return true;
}

static bool is_settled(struct pgpu_trace_pair *pair) {
    struct measured measured = {0};
    if (!read_elapsed(pair->start, pair->end, &measured.duration_ns)) {
        pgpu_trace_count(&pgpu_trace_log()->unmeasured, 1);
        return true;
    }
    if (!compute_start(pair, &measured)) return false;
    pgpu_trace_measure(pair->shape, measured.duration_ns);
    if (pair->record == NULL) return true;
    pair->record->duration_ns = measured.duration_ns;
    __atomic_store_n(&pair->record->start_ns, measured.start_ns, __ATOMIC_RELEASE);
    return true;
}

/* How many pairs were queried and not ready. */
static unsigned settle_pair(uint32_t at) {
    if (!take(&states[at], PENDING)) return 0;
    bool is_over = has_passed(pairs[at].end) && is_settled(&pairs[at]);
    give(&states[at], is_over ? FREE : PENDING);
    return is_over ? 0 : 1;
}

/* A new anchor replaces the old one, at the GPU's own distance between the two events. */
static void move(struct anchor *anchor) {
    uint64_t more_ns;
    if (anchor->is_next_recorded && has_passed(anchor->next) &&
        read_elapsed(anchor->at, anchor->next, &more_ns)) {
        CUevent before = anchor->at;
        anchor->at = anchor->next;
        anchor->next = before;
        anchor->at_ns += more_ns;
        anchor->is_next_recorded = false;
    }
    if (anchor->is_next_recorded || pgpu_now_ns() < anchor->at_ns + MOVE_AFTER_NS) return;
    struct visit visit = enter(anchor->context);
    anchor->is_next_recorded = PGPU_REAL(cuEventRecord)(anchor->next, anchor->stream) == CUDA_SUCCESS;
    leave(&visit);
}

static void move_anchors(void) {
    for (unsigned i = 0; i < ANCHORS; i++) {
        if (__atomic_load_n(&anchors[i].context, __ATOMIC_ACQUIRE) == NULL) continue;
        if (!take(&anchors[i].state, FREE)) continue;
        if (anchors[i].context != NULL) move(&anchors[i]);
        give(&anchors[i].state, FREE);
    }
}

/* Oldest first. */
static void settle_all(unsigned patience) {
    uint32_t first = __atomic_load_n(&cursor, __ATOMIC_RELAXED);
    for (uint32_t i = 0, in_vain = 0; i < PAIRS && in_vain < patience; i++)
        in_vain += settle_pair((first + i) % PAIRS);
}

void pgpu_trace_settle(void) {
    if (!pgpu_trace_is_on()) return;
    uint64_t since_ns = pgpu_now_ns();
    struct pgpu_trace *log = pgpu_trace_log();
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    PGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    settle_all(UNREADY_LOOKS);
    move_anchors();
    PGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    pgpu_trace_count(&log->self_ns, pgpu_now_ns() - since_ns);
}

static void forget(struct pgpu_trace_pair *pair, CUcontext context) {
    if (pair->context != context || !take(state_of(pair), FREE)) return;
    PGPU_REAL(cuEventDestroy_v2)(pair->start);
    PGPU_REAL(cuEventDestroy_v2)(pair->end);
    pair->context = NULL;
    give(state_of(pair), FREE);
}

/* Waits for queued work, as the end of the context does. */
void pgpu_trace_end_context(CUcontext context) {
    struct anchor *anchor = pgpu_trace_is_on() && context != NULL ? find_anchor(context) : NULL;
    if (anchor == NULL) return;
    struct visit visit = enter(context);
    PGPU_REAL(cuCtxSynchronize)();
    settle_all(PAIRS);
    for (uint32_t i = 0; i < PAIRS; i++)
        forget(&pairs[i], context);
    if (take(&anchor->state, FREE)) {
        destroy(anchor);
        give(&anchor->state, FREE);
    }
    leave(&visit);
}

/* In a forked child the driver does not have these events. */
void pgpu_trace_forget_events(void) {
    for (uint32_t i = 0; i < PAIRS; i++) {
        pairs[i].context = NULL;
        states[i] = FREE;
    }
    for (unsigned i = 0; i < ANCHORS; i++)
        anchors[i] = (struct anchor){0};
}
