/* An event pair measures elapsed time, not GPU time of our own: batches of several streams overlap, and other
 * contexts take turns in between. So only the part that no earlier batch has covered counts, and of that the
 * part that the boards' figures leave to this process. */
#include "time/measurement.h"

#include <string.h>

#include "brief_wait.h"
#include "clock.h"
#include "time/batches.h"
#include "time/board.h"
#include "time/budget.h"
#include "time/estimates.h"
#include "time/in_flight.h"
#include "functions.h"
#include "time/neighbours.h"
#include "time/busy_periods.h"

/* From this part on the GPU counts as ours alone. */
#define NEARLY_ALONE 0.98
/* Work beside our other streams was charged little, and its next launch may run alone: expect at least this
 * part of its elapsed time, which its measurement corrects. */
#define MOST_AT_ONCE 8
/* A batch that took at most this many times its estimate had no long gap and no unusually long kernel; two
 * microseconds are allowed for each launch. */
#define SURPRISE           1.5
#define FORGIVEN_LAUNCH_NS 2000u
#define UNREADY            16u
#define CONTEXTS           8u
/* Part of a later reading that counts as drift of the clocks. */
#define INVERSE_DRIFT 64
/* Origin of a timeline, so that none of its times is below zero. */
#define LONG_AGO_NS (1ll << 40)

/* A context's own time: its latest event that was read, and what batches before it have covered. */
struct timeline {
    CUcontext context;
    CUevent latest;
    uint64_t latest_ns;
    struct pgpu_intervals covered;
    struct pgpu_busy_period run;
    int64_t ahead_ns; /* lead of the host's clock: the least delay with which the end of a batch was read */
    bool has_ahead;
};

/* A batch on its context's timeline: its bounds, the part not covered before, an upper bound of the host
 * clock's lead, and the busy period that it belongs to. */
struct covered {
    uint64_t from_ns, to_ns, passed_ns;
    int64_t ahead_ns;
    struct pgpu_busy_period *run;
};

/* A batch's time that no earlier one has covered, what of it the GPU spent on us, and what in a burst shorter
 * than a turn. */
struct attributed {
    uint64_t passed_ns, own_ns, whole_ns;
};

static struct state {
    bool is_taken;
    unsigned next;
    uint64_t given_up_until_ns; /* time of the host that was charged without a measurement */
    uint64_t queued_until_ns;   /* time of the host that was published as queued */
    struct timeline timelines[CONTEXTS];
} states[PGPU_MAX_GPUS];

static bool elapsed_ns(CUevent from, CUevent to, int64_t *ns) {
    float milliseconds;
    if (PGPU_REAL(cuEventElapsedTime)(&milliseconds, from, to) != CUDA_SUCCESS) return false;
    *ns = (int64_t)((double)milliseconds * 1e6);
    return true;
}

/* The oldest one is replaced. */
static struct timeline *timeline_of(struct state *state, CUcontext context) {
    for (unsigned at = 0; at < CONTEXTS; at++)
        if (state->timelines[at].context == context) return &state->timelines[at];
    struct timeline *found = &state->timelines[state->next++ % CONTEXTS];
    if (found->latest != NULL) PGPU_REAL(cuEventDestroy_v2)(found->latest);
    *found = (struct timeline){.context = context, .latest_ns = LONG_AGO_NS};
    return found;
}

/* Reading an event happens after the event, never before; clocks drift apart, and intervals are rounded. */
static void compare_clocks(struct timeline *timeline, uint64_t to_ns, uint64_t now_ns) {
    int64_t ahead_ns = (int64_t)now_ns - (int64_t)to_ns, more_ns = ahead_ns - timeline->ahead_ns;
    timeline->ahead_ns += timeline->has_ahead && more_ns > 0 ? more_ns / INVERSE_DRIFT : more_ns;
    timeline->has_ahead = true;
}

/* The part of a batch's time that no earlier one has covered. Its end event is kept if it is the latest. */
static struct covered cover(struct state *state, struct pgpu_batch *batch, uint64_t lasted_ns,
                            uint64_t now_ns) {
    struct timeline *timeline = timeline_of(state, batch->context);
    int64_t distance_ns = LONG_AGO_NS / 2;
    if (timeline->latest == NULL || !elapsed_ns(timeline->latest, batch->start, &distance_ns))
        timeline->has_ahead = false;
    uint64_t from_ns = timeline->latest_ns + (uint64_t)distance_ns, to_ns = from_ns + lasted_ns;
    compare_clocks(timeline, to_ns, now_ns);
    pgpu_busy_period_extend(&timeline->run, from_ns, to_ns);
    struct covered covered = {.from_ns = from_ns,
                              .to_ns = to_ns,
                              .passed_ns = pgpu_intervals_add(&timeline->covered, from_ns, to_ns),
                              .ahead_ns = timeline->ahead_ns,
                              .run = &timeline->run};
    if (timeline->latest != NULL && to_ns < timeline->latest_ns) return covered;
    CUevent former = timeline->latest;
    timeline->latest = batch->end;
    timeline->latest_ns = to_ns;
    batch->end = former;
    return covered;
}

/* A launch's part of the measured time, in proportion to its estimate. */
static uint64_t part_of(const struct pgpu_batch *batch, unsigned launch, uint64_t all_ns) {
    double part = (double)batch->estimates_ns[launch] / (double)batch->estimate_ns;
    return (uint64_t)((double)all_ns * part);
}

static void learn(const struct pgpu_batch *batch, uint64_t all_ns, uint64_t now_ns) {
    for (unsigned at = 0; at < batch->launches && batch->estimate_ns != 0; at++)
        pgpu_estimates_update(batch->row[at], part_of(batch, at, all_ns), now_ns);
}

static void learn_alone(const struct pgpu_batch *batch, uint64_t all_ns, uint64_t now_ns) {
    for (unsigned at = 0; at < batch->launches && batch->estimate_ns != 0; at++)
        pgpu_estimates_update_alone(batch->row[at], part_of(batch, at, all_ns), now_ns);
}

/* Sum of the launches' recent times without work of other jobs; 0 if one of them has none. */
static uint64_t alone_ns(const struct pgpu_batch *batch, uint64_t now_ns) {
    uint64_t sum_ns = 0;
    for (unsigned at = 0; at < batch->launches; at++) {
        uint64_t one_ns = pgpu_estimates_alone_ns(batch->row[at], now_ns);
        if (one_ns == 0) return 0;
        sum_ns += one_ns;
    }
    return sum_ns;
}

/* Whether they still take about as long as alone on the GPU, so that their time alone can replace this
 * measurement. */
static bool is_as_alone(const struct pgpu_batch *batch, uint64_t own_ns) {
    bool is_so = true;
    for (unsigned at = 0; at < batch->launches && batch->estimate_ns != 0; at++)
        is_so &= pgpu_estimates_agree(batch->row[at], part_of(batch, at, own_ns));
    return is_so;
}

static void charge(const struct pgpu_batch *batch, const struct attributed *attributed) {
    struct pgpu_board_gpu *own = pgpu_board_of(batch->gpu);
    uint64_t counted_ns = (uint64_t)((double)attributed->own_ns * pgpu_neighbours_counted(batch->gpu));
    if (batch->is_exact) pgpu_budget_charge(batch->gpu, counted_ns - batch->estimate_ns);
    if (own == NULL) return;
    pgpu_board_add(&own->used_ns, attributed->own_ns);
    pgpu_board_add(&pgpu_board_own()->whole_ns[batch->gpu], attributed->whole_ns);
    pgpu_board_add(&own->busy_ns, attributed->passed_ns);
    pgpu_neighbours_add_published(batch->gpu, attributed->passed_ns, attributed->whole_ns);
}

static void watch(const struct pgpu_batch *batch, uint64_t now_ns) {
    for (unsigned at = 0; at < batch->launches; at++)
        pgpu_estimates_watch(batch->row[at], now_ns);
}

/* It contains kernels that are sometimes long, or pauses. */
static bool is_surprising(const struct pgpu_batch *batch, uint64_t own_ns) {
    uint64_t forgiven_ns = (uint64_t)batch->launches * FORGIVEN_LAUNCH_NS;
    return (double)own_ns > SURPRISE * (double)batch->estimate_ns + (double)forgiven_ns;
}

static double part_since(int gpu, const struct covered *covered, uint64_t from_ns, uint64_t now_ns) {
    uint64_t ahead_ns = (uint64_t)covered->ahead_ns;
    return pgpu_neighbours_part(gpu, from_ns + ahead_ns, covered->to_ns + ahead_ns, now_ns);
}

/* The turns give our part, except for time lost at their ends. The kernels' times alone on the GPU depend on
 * no turns. */
static struct attributed attribute(const struct pgpu_batch *batch, const struct covered *covered, double part,
                                   uint64_t now_ns) {
    double part_of_run = part_since(batch->gpu, covered, covered->run->from_ns, now_ns);
    uint64_t passed_ns = covered->passed_ns;
    bool is_crowd = pgpu_neighbours_by_user(batch->gpu);
    uint64_t own_ns = pgpu_busy_period_own_ns(covered->run, passed_ns, part_of_run, part, is_crowd);
    bool is_alone = part > NEARLY_ALONE, is_burst = !is_alone && pgpu_busy_period_is_burst(covered->run);
    struct attributed attributed = {passed_ns, own_ns, is_burst ? passed_ns : 0};
    if (is_alone || batch->is_loose || !is_as_alone(batch, own_ns)) return attributed;
    uint64_t known_ns = alone_ns(batch, now_ns);
    if (known_ns != 0) attributed.own_ns = pgpu_least_ns(known_ns, passed_ns);
    return attributed;
}

/* Where no share depends on it, a batch may contain pauses: the stream was idle while the host had not
 * launched the next kernel, so for no longer than the host took from the first to the last. */
static struct attributed without_pauses(const struct pgpu_batch *batch, struct attributed all) {
    uint64_t host_ns = batch->ended_at_ns - batch->begun_at_ns;
    uint64_t least_ns = all.passed_ns > host_ns ? all.passed_ns - host_ns : 0;
    uint64_t passed_ns = pgpu_least_ns(pgpu_most_ns(least_ns, batch->estimate_ns), all.passed_ns);
    return (struct attributed){passed_ns,
                               (uint64_t)((double)all.own_ns * (double)passed_ns / (double)all.passed_ns), 0};
}

/* From its launch, or the end of an earlier batch, to its end by the host's clock. */
static void publish_queued(struct state *state, const struct pgpu_batch *batch, uint64_t end_ns) {
    struct pgpu_board_gpu *own = pgpu_board_of(batch->gpu);
    uint64_t from_ns = pgpu_most_ns(state->queued_until_ns, batch->begun_at_ns);
    if (own == NULL || end_ns <= from_ns) return;
    pgpu_in_flight_note_done(batch->gpu, end_ns); /* in this order: never counted twice */
    pgpu_board_add(&own->queued_ns, end_ns - from_ns);
    pgpu_neighbours_add_queued(batch->gpu, end_ns - from_ns);
    state->queued_until_ns = end_ns;
}

static void measure(struct state *state, struct pgpu_batch *batch, uint64_t lasted_ns, uint64_t now_ns) {
    struct covered covered = cover(state, batch, lasted_ns, now_ns);
    double part = part_since(batch->gpu, &covered, covered.from_ns, now_ns);
    struct attributed attributed = attribute(batch, &covered, part, now_ns);
    bool is_surprise = batch->is_loose && is_surprising(batch, attributed.own_ns);
    if (is_surprise && !batch->is_exact) attributed = without_pauses(batch, attributed);
    charge(batch, &attributed);
    publish_queued(state, batch, covered.to_ns + (uint64_t)covered.ahead_ns);
    if (is_surprise && batch->is_exact) watch(batch, now_ns); /* launch by launch from here on */
    if (batch->is_loose) return;
    if (part > NEARLY_ALONE) learn_alone(batch, attributed.own_ns, now_ns);
    uint64_t least_ns = (uint64_t)((double)lasted_ns * part / MOST_AT_ONCE);
    learn(batch, pgpu_most_ns(attributed.own_ns, least_ns), now_ns);
}

void pgpu_measurement_give_up(const struct pgpu_batch *batch, uint64_t now_ns, uint64_t least_ns) {
    uint64_t *until_ns = &states[batch->gpu].given_up_until_ns;
    uint64_t from_ns = __atomic_exchange_n(until_ns, now_ns, __ATOMIC_RELAXED);
    if (from_ns < batch->begun_at_ns) from_ns = batch->begun_at_ns;
    uint64_t passed_ns = now_ns > from_ns ? now_ns - from_ns : 0;
    charge(batch, &(struct attributed){passed_ns, pgpu_most_ns(passed_ns, least_ns), 0});
    if (batch->is_exact) watch(batch, now_ns);
}

/* False: its events have not passed yet. */
static bool read_batch(struct state *state, struct pgpu_batch *batch, uint64_t now_ns) {
    int64_t lasted_ns;
    CUresult result = PGPU_REAL(cuEventQuery)(batch->end);
    if (result == CUDA_ERROR_NOT_READY) return false;
    if (result == CUDA_SUCCESS && elapsed_ns(batch->start, batch->end, &lasted_ns) && lasted_ns >= 0)
        measure(state, batch, (uint64_t)lasted_ns, now_ns);
    else
        pgpu_measurement_give_up(batch, now_ns, batch->estimate_ns);
    return true;
}

/* What is still in flight has been since the last batch ended, at the latest now. */
static void publish_busy(int gpu, uint64_t now_ns, bool has_read) {
    struct pgpu_board_gpu *own = pgpu_board_of(gpu);
    if (own == NULL || pgpu_in_flight_settle(gpu, now_ns)) return;
    if (has_read) pgpu_board_store(&own->busy_since_ns, now_ns);
}

/* Streams with an unfinished oldest batch: their later batches need no query. */
struct unready {
    CUstream stream[UNREADY];
    unsigned count;
};

static bool is_unready(const struct unready *unready, const struct pgpu_batch *batch) {
    for (unsigned at = 0; at < unready->count; at++)
        if (unready->stream[at] == batch->stream) return true;
    return false;
}

static bool read_all(int gpu, struct state *state, uint64_t now_ns) {
    struct unready unready = {.count = 0};
    bool has_read = false;
    for (struct pgpu_batch *batch = pgpu_batches_next(gpu, NULL), *next; batch != NULL; batch = next) {
        next = pgpu_batches_next(gpu, batch);
        if (is_unready(&unready, batch)) continue;
        if (read_batch(state, batch, now_ns)) {
            pgpu_batches_finish(batch);
            has_read = true;
        } else if (unready.count < UNREADY && (uintptr_t)batch->stream > (uintptr_t)CU_STREAM_PER_THREAD) {
            unready.stream[unready.count++] = batch->stream;
        }
    }
    return has_read;
}

static void settle(int gpu, struct state *state, uint64_t now_ns) {
    if (pgpu_batches_left(gpu) == 0) {
        publish_busy(gpu, now_ns, false);
        return;
    }
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool is_relaxed = PGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;
    bool has_read = read_all(gpu, state, now_ns);
    if (is_relaxed) PGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    publish_busy(gpu, now_ns, has_read);
}

/* A thread that captures may not query an event unless its capture mode is relaxed. */
void pgpu_measurement_settle(int gpu, uint64_t now_ns) {
    struct state *state = &states[gpu];
    if (!__atomic_exchange_n(&state->is_taken, true, __ATOMIC_ACQUIRE)) {
        settle(gpu, state, now_ns);
        __atomic_store_n(&state->is_taken, false, __ATOMIC_RELEASE);
    }
}

/* The driver destroys their events with the context. */
static void give_up_all(int gpu, CUcontext context) {
    uint64_t now_ns = pgpu_now_ns();
    for (struct pgpu_batch *batch = pgpu_batches_next(gpu, NULL), *next; batch != NULL; batch = next) {
        next = pgpu_batches_next(gpu, batch);
        if (batch->context != context) continue;
        pgpu_measurement_give_up(batch, now_ns, 0);
        batch->start = batch->end = NULL;
        pgpu_batches_finish(batch);
    }
}

static void end_context(int gpu, CUcontext context) {
    struct state *state = &states[gpu];
    if (pgpu_batches_left(gpu) != 0) settle(gpu, state, pgpu_now_ns());
    give_up_all(gpu, context);
    for (unsigned at = 0; at < CONTEXTS; at++)
        if (state->timelines[at].context == context) state->timelines[at] = (struct timeline){0};
}

/* A reading thread uses events of the context, so it is waited for. */
void pgpu_measurement_pause(void) {
    unsigned looks = 0;
    for (unsigned gpu = 0; gpu < PGPU_MAX_GPUS; gpu++)
        while (__atomic_exchange_n(&states[gpu].is_taken, true, __ATOMIC_ACQUIRE))
            pgpu_wait_briefly(&looks);
}

void pgpu_measurement_end_context(CUcontext context) {
    for (unsigned gpu = 0; gpu < PGPU_MAX_GPUS; gpu++)
        end_context((int)gpu, context);
    pgpu_batches_end_context(context);
    for (unsigned gpu = 0; gpu < PGPU_MAX_GPUS; gpu++)
        __atomic_store_n(&states[gpu].is_taken, false, __ATOMIC_RELEASE);
}

void pgpu_measurement_after_fork_in_child(void) {
    memset(states, 0, sizeof(states));
}
