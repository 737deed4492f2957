#include "time/gate.h"

#include <time.h>

#include "clock.h"
#include "time/batches.h"
#include "time/board.h"
#include "time/budget.h"
#include "cancellation.h"
#include "time/estimates.h"
#include "time/in_flight.h"
#include "memory/first_launches.h"
#include "memory/loading.h"
#include "time/lanes.h"
#include "time/measurement.h"
#include "time/neighbours.h"
#include "memory/paging.h"
#include "slice/report.h"
#include "time/streams.h"
#include "time/timing.h"

/* A launch that was admitted admits those of this time behind it, unless the compute word changes. */
#define MAY_FOR_NS        500000u
#define UNSHARED_FOR_NS   5000000u
#define QUEUE_NS          20000000u
#define QUEUE_PATIENCE_NS 250000000u
#define QUEUE_LOOK_NS     500000u
/* Streams with launches within this time count as used at once. */
#define STREAMS_WITHIN_NS 2000000000ull
/* Poll interval while work is in flight, so that its end is detected soon: work of other jobs counts until
 * then. */
#define FLIGHT_LOOK_NS 1000000u
/* Poll interval while the job is held. */
#define HELD_LOOK_NS 2000000u
/* A copy's speed on the PCIe bus, for the forecast of what is in flight. */
#define COPY_BYTES_PER_NS 10u
/* The part of a compute word that is not 0 where time is divided between users. */
#define OF_USER (PGPU_COMPUTE_USER_MASK << PGPU_COMPUTE_USER_SHIFT)

static uint64_t word_of(int gpu) {
    return __atomic_load_n(&pgpu_slice_limit()->gpu[gpu].compute, __ATOMIC_RELAXED);
}

/* Of the last check: whether a share depends on the time of launches, the job's own or its user's. */
static bool are_exact[PGPU_MAX_GPUS];

static bool any_word(void) {
    uint64_t words = 0;
    for (unsigned gpu = 0; gpu < pgpu_slice_limit()->gpu_count; gpu++)
        words |= word_of((int)gpu);
    return words != 0;
}

CUresult pgpu_gate_enter(void) {
    const char *why = pgpu_board_open(pgpu_slice_limit());
    if (why == NULL || !any_word()) return CUDA_SUCCESS; /* a job without a share needs no board */
    pgpu_report_refusal(why, NULL);
    return CUDA_ERROR_NOT_PERMITTED;
}

/* The work of a capturing stream runs later, as part of a graph. */
static bool is_captured(const struct pgpu_trace_command *command) {
    return pgpu_streams_any_captures() && pgpu_streams_is_capturing(command->stream, command->is_per_thread);
}

/* Bound on the queue's depth, so that a job that arrives is served soon. The wait for its end has a deadline
 * as well, in case the work in flight waits for something that the program does next. */
static uint64_t queue_wait_ns(int gpu, uint64_t now_ns, uint64_t waited_ns) {
    if (waited_ns > QUEUE_PATIENCE_NS || pgpu_batches_queued_ns(gpu, now_ns) <= QUEUE_NS) return 0;
    return QUEUE_LOOK_NS;
}

/* Kernels of several streams share the multiprocessors: a launch of each costs little more than one. */
static uint64_t burst_ns(const struct pgpu_work *work, int gpu, uint64_t word) {
    if ((word & PGPU_COMPUTE_STRICT) == 0) return 0;
    uint64_t since_ns = work->now_ns > STREAMS_WITHIN_NS ? work->now_ns - STREAMS_WITHIN_NS : 1;
    unsigned streams = pgpu_lanes_used(gpu, since_ns);
    return streams < 2 ? 0 : streams * work->estimate_ns;
}

static uint64_t wait_ns(struct pgpu_work *work, int gpu, uint64_t word, uint64_t waited_ns) {
    if ((word & PGPU_COMPUTE_HELD) != 0) return HELD_LOOK_NS;
    if (work->lane == NULL) return 0;
    bool is_shared = (word & PGPU_COMPUTE_SHARED) != 0;
    struct pgpu_verdict verdict = {.is_alone = true, .is_free = true};
    if (is_shared || (word & OF_USER) != 0) {
        struct pgpu_backlog backlog = {.own_ns = pgpu_timing_uncharged_ns(gpu),
                                       .queued_ns = pgpu_batches_queued_ns(gpu, work->now_ns),
                                       .burst_ns = burst_ns(work, gpu, word),
                                       .waited_ns = waited_ns};
        verdict = pgpu_budget_check(gpu, word, work->now_ns, &backlog);
    }
    work->is_exact = is_shared || !verdict.is_alone;
    __atomic_store_n(&are_exact[gpu], work->is_exact, __ATOMIC_RELAXED);
    work->lane->may_until_ns = work->now_ns + (work->is_exact ? MAY_FOR_NS : UNSHARED_FOR_NS);
    work->lane->may_word = word;
    work->lane->may_freely = verdict.is_free;
    if (verdict.wait_ns > 0) return verdict.wait_ns;
    if (!work->is_exact) return 0;
    uint64_t unknown_ns = pgpu_estimates_wait_ns(work->row, work->now_ns);
    return unknown_ns > 0 ? unknown_ns : queue_wait_ns(gpu, work->now_ns, waited_ns);
}

/* No lock is held and nothing was launched: the thread may be cancelled here. */
static void sleep_for(uint64_t ns) {
    struct timespec pause = {.tv_nsec = (long)ns};
    int before = pgpu_cancellation_defer();
    nanosleep(&pause, NULL);
    pgpu_cancellation_restore(before);
    pthread_testcancel(); /* here and not inside the sleep, which lasts some milliseconds */
}

static void wait_for_turn(struct pgpu_work *work, int gpu) {
    struct pgpu_board_gpu *own = pgpu_board_of(gpu);
    uint64_t began_ns = work->now_ns, pause_ns, word = word_of(gpu);
    for (; (pause_ns = wait_ns(work, gpu, word, work->now_ns - began_ns)) > 0; word = word_of(gpu)) {
        if (began_ns == work->now_ns) pgpu_timing_close();
        pgpu_in_flight_publish_demand(gpu, work->now_ns);
        pgpu_timing_settle(gpu);
        if ((word & PGPU_COMPUTE_HELD) != 0) pgpu_in_flight_settle(gpu, work->now_ns);
        sleep_for(pgpu_batches_left(gpu) > 0 && pause_ns > FLIGHT_LOOK_NS ? FLIGHT_LOOK_NS : pause_ns);
        work->now_ns = pgpu_now_ns();
    }
    if (own != NULL && work->now_ns != began_ns) pgpu_board_add(&own->waited_ns, work->now_ns - began_ns);
    pgpu_paging_prefetch_after_hold(gpu, word, work->command.stream, work->command.is_per_thread);
}

/* A launch shortly after one that was admitted, with budget left. */
static bool may_at_once(const struct pgpu_work *work, int gpu, uint64_t word) {
    const struct pgpu_lane *lane = work->lane;
    if (lane == NULL || word != lane->may_word || work->now_ns >= lane->may_until_ns) return false;
    if ((word & PGPU_COMPUTE_HELD) != 0) return false;
    if (!work->is_exact) return true;
    if (pgpu_batches_queued_ns(gpu, work->now_ns) > QUEUE_NS) return false;
    return lane->may_freely || pgpu_budget_left_ns(gpu) > (int64_t)lane->batch.estimate_ns;
}

/* One more small kernel in an open batch, with budget left. It costs less than reading the clock, which is
 * done once for the batch. */
static bool may_join(struct pgpu_work *work, int gpu, uint64_t word) {
    const struct pgpu_lane *lane = work->lane;
    if (!pgpu_timing_is_joinable(work) || word != lane->may_word || (word & PGPU_COMPUTE_HELD) != 0)
        return false;
    work->now_ns = lane->used_at_ns;
    return lane->may_freely || pgpu_budget_left_ns(gpu) > (int64_t)lane->batch.estimate_ns;
}

static void estimate(struct pgpu_work *work) {
    if (work->lane != NULL) work->row = pgpu_estimates_find(work);
}

/* From here on a host that holds the job sees that something is in flight. */
static void enter_flight(struct pgpu_work *work, int gpu) {
    pgpu_in_flight_enter(gpu, work->now_ns);
    while ((__atomic_load_n(&pgpu_slice_limit()->gpu[gpu].compute, __ATOMIC_SEQ_CST) & PGPU_COMPUTE_HELD) !=
           0) {
        pgpu_in_flight_leave(gpu);
        wait_for_turn(work, gpu);
        pgpu_in_flight_enter(gpu, work->now_ns);
    }
    work->is_in_flight = true;
}

/* The lane stays held from here on, so that no thread closes the batch meanwhile. */
static bool joins(struct pgpu_work *work, int gpu, uint64_t word) {
    struct pgpu_lane *lane = work->lane;
    if (lane == NULL) return false;
    pgpu_lanes_hold(lane);
    if (!may_join(work, gpu, word)) {
        pgpu_lanes_release(lane);
        return false;
    }
    lane->batch.is_loose = true;
    return true;
}

static void pass(struct pgpu_work *work, int gpu, uint64_t word) {
    work->is_exact = __atomic_load_n(&are_exact[gpu], __ATOMIC_RELAXED);
    estimate(work);
    if (joins(work, gpu, word)) return;
    work->now_ns = pgpu_now_ns();
    if (!work->is_known || !may_at_once(work, gpu, word)) {
        struct pgpu_board_gpu *own = pgpu_board_of(gpu);
        if (own != NULL && pgpu_board_load(&own->share_word) != word)
            pgpu_board_store(&own->share_word, word);
        pgpu_timing_settle(gpu);
        wait_for_turn(work, gpu);
        estimate(work); /* it may have been measured meanwhile */
    }
    enter_flight(work, gpu);
    if (work->lane != NULL) {
        pgpu_lanes_hold(work->lane);
        pgpu_timing_begin(work);
        return;
    }
    pgpu_in_flight_add_copy(gpu, work->now_ns, work->command.bytes / COPY_BYTES_PER_NS);
    pgpu_in_flight_publish_demand(gpu, work->now_ns);
}

/* A job with one GPU launches there; otherwise the driver is queried. */
static int gpu_of(const struct pgpu_trace_command *command) {
    struct pgpu_place place;
    if (pgpu_slice_limit()->gpu_count == 1 && pgpu_slice_device_count() == 1) return 0;
    CUresult result = pgpu_slice_of_stream(command->stream, command->is_per_thread, &place);
    return result == CUDA_SUCCESS ? place.gpu : PGPU_NO_GPU;
}

static CUresult enter(struct pgpu_work *work) {
    if (is_captured(&work->command)) return CUDA_SUCCESS;
    if (work->command.kind == PGPU_TRACE_COPY && !work->is_within)
        pgpu_timing_close(); /* many copies wait for earlier launches */
    else
        work->lane = pgpu_timing_lane(&work->command);
    int gpu = work->lane != NULL ? work->lane->gpu : gpu_of(&work->command);
    uint64_t word = gpu == PGPU_NO_GPU ? 0 : word_of(gpu);
    if (word == 0) {
        work->lane = NULL;
        return CUDA_SUCCESS;
    }
    const char *why = pgpu_board_of(gpu) == NULL ? pgpu_board_open(pgpu_slice_limit()) : NULL;
    if (why != NULL) {
        pgpu_report_refusal(why, NULL);
        work->lane = NULL;
        return CUDA_ERROR_NOT_PERMITTED;
    }
    work->gpu = (int8_t)gpu;
    pass(work, gpu, word);
    return CUDA_SUCCESS;
}

/* Apart from shares: a program without a trace whose kernels were all launched before has none. */
static __attribute__((noinline)) CUresult begin_duties(struct pgpu_work *work) {
    struct pgpu_trace_command *command = &work->command;
    work->has_duties = true;
    work->span.is_open = false;
    bool is_first = command->kind == PGPU_TRACE_KERNEL && pgpu_first_launches_has(command->function);
    if (is_first && pgpu_slice_current(&command->place) == CUDA_SUCCESS &&
        pgpu_loading_is_barred(&command->place))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!pgpu_trace_is_on()) return CUDA_SUCCESS;
    if (command->kind == PGPU_TRACE_GRAPH) command->bytes = pgpu_trace_nodes_of(work->graph);
    if (pgpu_slice_of_stream(command->stream, command->is_per_thread, &command->place) == CUDA_SUCCESS)
        pgpu_trace_begin(command, &work->span);
    return CUDA_SUCCESS;
}

static __attribute__((noinline)) void finish_first_launch(const struct pgpu_work *work) {
    if (work->command.kind == PGPU_TRACE_KERNEL && !is_captured(&work->command))
        pgpu_first_launches_finish(work->command.function);
}

CUresult pgpu_gate_before(struct pgpu_work *work) {
    work->gpu = PGPU_NO_GPU;
    work->lane = NULL;
    work->is_known = true;
    work->is_watched = false;
    work->is_in_flight = false;
    work->has_duties = false;
    CUresult result = enter(work);
    if (result == CUDA_SUCCESS && pgpu_slice_duties() != 0) result = begin_duties(work);
    return result;
}

static void count_copy(const struct pgpu_work *work) {
    struct pgpu_board_gpu *own = pgpu_board_of(work->gpu);
    if (own != NULL) pgpu_board_add(&own->launches, 1);
}

void pgpu_gate_after(struct pgpu_work *work, CUresult result) {
    if (work->has_duties && work->span.is_open) pgpu_trace_end(&work->command, &work->span, result);
    if (work->lane != NULL)
        pgpu_timing_end(work, result);
    else if (work->gpu != PGPU_NO_GPU && result == CUDA_SUCCESS)
        count_copy(work);
    if (work->is_in_flight) pgpu_in_flight_leave(work->gpu);
    /* Last: NVML is asked, and the charge may wait for a larger slice, which is not time of the kernel. */
    if (work->has_duties && result == CUDA_SUCCESS) finish_first_launch(work);
}

void pgpu_gate_before_synchronisation(void) {
    if (pgpu_gate_is_open()) return;
    pgpu_timing_close();
}

void pgpu_gate_after_synchronisation(void) {
    const struct pgpu_limit *limit = pgpu_slice_limit();
    if (pgpu_gate_is_open()) return;
    pgpu_trace_settle();
    for (unsigned gpu = 0; gpu < limit->gpu_count; gpu++) {
        if (word_of((int)gpu) == 0 || pgpu_board_of((int)gpu) == NULL) continue;
        pgpu_timing_settle((int)gpu);
    }
}

void pgpu_gate_end_context(CUcontext context) {
    pgpu_timing_end_context(context);
}

void pgpu_gate_before_fork(void) {
    pgpu_batches_before_fork();
    pgpu_neighbours_before_fork();
}

void pgpu_gate_after_fork(bool is_child) {
    pgpu_neighbours_after_fork(is_child);
    pgpu_batches_after_fork(is_child);
    if (!is_child) return;
    pgpu_streams_after_fork_in_child();
    pgpu_in_flight_after_fork_in_child();
    pgpu_timing_after_fork_in_child();
    pgpu_measurement_after_fork_in_child();
}
