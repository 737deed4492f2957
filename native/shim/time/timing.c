#include "time/timing.h"

#include <string.h>

#include "cancellation.h"
#include "clock.h"
#include "time/batches.h"
#include "time/board.h"
#include "time/budget.h"
#include "time/estimates.h"
#include "time/in_flight.h"
#include "functions.h"
#include "time/lanes.h"
#include "time/measurement.h"
#include "time/neighbours.h"
#include "time/streams.h"

/* A batch is closed at this estimate. */
#define MOST_ESTIMATE_NS 5000000u
/* A shorter idle time of a stream is no gap: no launch takes less. */
#define NO_GAP_NS 2000u
/* Another thread's batch is closed once its work should have been done for this long; such batches are
 * searched for at this interval. */
#define FORGOTTEN_NS   1000000u
#define LOOK_AROUND_NS 1000000u

static uint64_t looked_around_at_ns;

static uint64_t load(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static void store(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static bool record(CUevent event, const struct pgpu_lane *lane) {
    if (event == NULL) return false;
    return (lane->is_per_thread ? PGPU_REAL(cuEventRecord_ptsz)(event, lane->stream)
                                : PGPU_REAL(cuEventRecord)(event, lane->stream)) == CUDA_SUCCESS;
}

static void publish_launches(const struct pgpu_batch *batch, uint64_t now_ns) {
    struct pgpu_board_gpu *own = pgpu_board_of(batch->gpu);
    if (own != NULL) pgpu_board_add(&own->launches, batch->launches);
    pgpu_in_flight_publish_demand(batch->gpu, now_ns);
}

static void set_closed(struct pgpu_lane *lane) {
    lane->batch.is_open = false;
    pgpu_lanes_note(lane, false);
    pgpu_in_flight_close_batch(lane->batch.gpu);
}

/* Record the end behind small launches, only where that delays nothing: not where it would be a barrier, nor
 * in a capture. A thread's own default stream is accessible to that thread alone. */
static bool lay_end_late(const struct pgpu_lane *lane) {
    if (lane->kind == PGPU_STREAM_LEGACY && pgpu_streams_any_blocks()) return false;
    if (lane->kind == PGPU_STREAM_OF_THREAD && !pgpu_lanes_is_own(lane)) return false;
    return !pgpu_streams_is_capturing(lane->stream, lane->is_per_thread) && record(lane->batch.end, lane);
}

/* If the end of a batch is unknown, charge the whole time since it began; it may even run on. */
static void close_lane(struct pgpu_lane *lane, bool may_lay) {
    struct pgpu_batch *batch = &lane->batch;
    if (!batch->is_open) return;
    uint64_t now_ns = pgpu_now_ns();
    if (batch->launches == 0) {
        pgpu_batches_give_events(batch);
        set_closed(lane);
        return;
    }
    store(&lane->used_at_ns, now_ns);
    batch->is_loose |= !batch->has_end;
    if (!batch->has_end && may_lay) {
        batch->ended_at_ns = now_ns;
        batch->has_end = lay_end_late(lane);
    }
    publish_launches(batch, now_ns);
    if (batch->is_exact) pgpu_budget_charge(batch->gpu, batch->estimate_ns);
    if (!batch->has_end || !pgpu_batches_put(batch)) {
        pgpu_measurement_give_up(batch, now_ns, batch->estimate_ns);
        pgpu_batches_give_events(batch);
    }
    set_closed(lane);
}

static bool has_ended(const struct pgpu_lane *lane) {
    return __atomic_load_n(&lane->is_ended, __ATOMIC_RELAXED);
}

static void close_now(struct pgpu_lane *lane) {
    close_lane(lane, !has_ended(lane));
}

void pgpu_timing_close(void) {
    pgpu_lanes_visit(PGPU_OWN, close_now);
    pgpu_lanes_visit(PGPU_ORPHANS, close_now);
}

static void close_forgotten(struct pgpu_lane *lane) {
    const struct pgpu_batch *batch = &lane->batch;
    if (batch->is_open && lane->idle_at_ns + FORGOTTEN_NS < pgpu_now_ns()) close_now(lane);
}

void pgpu_timing_settle(int gpu) {
    int before = pgpu_cancellation_defer();
    uint64_t now_ns = pgpu_now_ns();
    if (now_ns >= load(&looked_around_at_ns) + LOOK_AROUND_NS) {
        store(&looked_around_at_ns, now_ns);
        pgpu_lanes_visit(PGPU_OTHERS | PGPU_ORPHANS, close_forgotten);
    }
    pgpu_measurement_settle(gpu, now_ns);
    pgpu_cancellation_restore(before);
}

struct pgpu_lane *pgpu_timing_lane(const struct pgpu_trace_command *command) {
    static const struct pgpu_lane_changes changes = {.use = pgpu_timing_note_use, .retire = close_now};
    return pgpu_lanes_find(command, &changes);
}

static bool is_alone_in_batch(const struct pgpu_work *work, bool is_dry) {
    if (!work->is_known || (work->is_exact && is_dry && work->estimate_ns >= PGPU_SINGLE_FROM_NS))
        return true;
    return pgpu_estimates_is_old(work->row, work->now_ns, work->is_exact);
}

static void open_batch(struct pgpu_work *work, bool is_dry) {
    struct pgpu_lane *lane = work->lane;
    struct pgpu_batch *batch = &lane->batch;
    *batch = (struct pgpu_batch){.context = lane->context,
                                 .stream = lane->stream,
                                 .begun_at_ns = work->now_ns,
                                 .gpu = lane->gpu,
                                 .is_open = true,
                                 .is_exact = work->is_exact,
                                 .is_single = is_alone_in_batch(work, is_dry)};
    pgpu_in_flight_open_batch(lane->gpu);
    pgpu_lanes_note(lane, true);
    if (!work->is_known) pgpu_estimates_expect(work->row, work->now_ns);
    pgpu_in_flight_begin(lane->gpu, work->now_ns);
    pgpu_batches_take_events(lane->context, &batch->start, &batch->end);
    if (batch->start == NULL || record(batch->start, lane)) return;
    pgpu_batches_give_events(batch);
    batch->start = batch->end = NULL;
}

void pgpu_timing_begin(struct pgpu_work *work) {
    struct pgpu_lane *lane = work->lane;
    struct pgpu_batch *batch = &lane->batch;
    bool is_dry = work->now_ns > lane->idle_at_ns + NO_GAP_NS;
    store(&lane->used_at_ns, work->now_ns);
    if (work->is_watched) pgpu_estimates_trust(work->row, work->now_ns);
    bool is_of_its_mode = !batch->is_open || batch->is_exact == work->is_exact;
    if ((is_dry && work->is_exact) || !work->is_known || !is_of_its_mode) close_now(lane);
    if (!batch->is_open) {
        open_batch(work, is_dry);
        return;
    }
    batch->is_loose |= is_dry;
    if (!is_dry) return;
    uint64_t longest_ns = work->estimate_ns * pgpu_neighbours_slowdown(lane->gpu);
    pgpu_in_flight_expect(lane->gpu, work->now_ns + longest_ns);
}

static bool needs_end(const struct pgpu_work *work) {
    const struct pgpu_lane *lane = work->lane;
    const struct pgpu_batch *batch = &lane->batch;
    bool is_barrier = lane->kind == PGPU_STREAM_LEGACY && pgpu_streams_any_blocks();
    bool is_long = work->is_exact && work->estimate_ns >= PGPU_SINGLE_FROM_NS;
    return is_barrier || batch->is_single || work->is_watched || is_long ||
           batch->launches == PGPU_BATCH_LAUNCHES || batch->estimate_ns >= MOST_ESTIMATE_NS;
}

static void add(const struct pgpu_work *work) {
    struct pgpu_lane *lane = work->lane;
    struct pgpu_batch *batch = &lane->batch;
    batch->row[batch->launches] = work->row;
    batch->estimates_ns[batch->launches++] = work->estimate_ns;
    batch->estimate_ns += work->estimate_ns;
    lane->idle_at_ns = pgpu_most_ns(lane->idle_at_ns, work->now_ns) + work->estimate_ns;
    pgpu_in_flight_add(lane->gpu, work->now_ns, work->estimate_ns);
    batch->has_end = false;
    if (!needs_end(work)) return;
    batch->ended_at_ns = pgpu_now_ns(); /* a launch that joined has an earlier time */
    batch->has_end = record(batch->end, lane);
}

void pgpu_timing_end(struct pgpu_work *work, CUresult result) {
    struct pgpu_lane *lane = work->lane;
    struct pgpu_batch *batch = &lane->batch;
    if (batch->is_open && result == CUDA_SUCCESS) add(work);
    if (batch->is_open &&
        (batch->launches == 0 || batch->is_single || batch->launches == PGPU_BATCH_LAUNCHES ||
         batch->estimate_ns >= MOST_ESTIMATE_NS || has_ended(lane)))
        close_now(lane);
    pgpu_lanes_release(lane);
}

static _Thread_local uint64_t uncharged_ns[PGPU_MAX_GPUS];

static void add_uncharged(struct pgpu_lane *lane) {
    uncharged_ns[lane->gpu] += lane->batch.estimate_ns;
}

uint64_t pgpu_timing_uncharged_ns(int gpu) {
    memset(uncharged_ns, 0, sizeof(uncharged_ns));
    pgpu_lanes_visit(PGPU_OWN, add_uncharged);
    return uncharged_ns[gpu];
}

static void close_if_legacy(struct pgpu_lane *lane) {
    if (lane->kind == PGPU_STREAM_LEGACY) close_now(lane);
}

/* Open batches of legacy streams get their end event while it is no barrier yet. A thread that is about to
 * record one is waited for, by every thread that arrives before that is done. */
void pgpu_timing_note_blocking_stream(void) {
    if (pgpu_streams_are_settled()) return;
    pgpu_lanes_visit(PGPU_OWN | PGPU_OTHERS | PGPU_ORPHANS, close_if_legacy);
    pgpu_streams_set_blocking();
    pgpu_lanes_outlast_visits();
    pgpu_streams_set_settled();
}

void pgpu_timing_note_use(CUstream stream, bool is_per_thread) {
    if (!pgpu_streams_are_settled() && pgpu_streams_is_blocking(stream, is_per_thread))
        pgpu_timing_note_blocking_stream();
}

static void end_stream(struct pgpu_lane *lane) {
    close_lane(lane, true);
}

void pgpu_timing_end_stream(CUstream stream) {
    if ((uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD) pgpu_lanes_end(stream, NULL, end_stream);
}

static void end_in_context(struct pgpu_lane *lane) {
    close_lane(lane, false);
}

void pgpu_timing_end_context(CUcontext context) {
    int before = pgpu_cancellation_defer();
    pgpu_measurement_pause();
    if (context != NULL) pgpu_lanes_end(NULL, context, end_in_context);
    pgpu_measurement_end_context(context);
    pgpu_cancellation_restore(before);
}

void pgpu_timing_after_fork_in_child(void) {
    pgpu_lanes_after_fork_in_child();
}
