#include "time/clock.h"

#include <pthread.h>
#include <time.h>

#include "cancellation.h"
#include "driver/driver.h"
#include "time/marks.h"
#include "mps/mps.h"
#include "time/neighbours.h"
#include "time/turn_account.h"
#include "managed/residency.h"

/* Interval at which the neighbours are read anew; also when the queue was empty. */
#define LOOK_PERIOD_NS 1000000u
#define LEAST_LOOK_NS  20000u
/* Eleven days: forecasts reach no farther. */
#define FAR_NS 1e15
/* Poll intervals of a waiting process: alone, beside processes without work, and beside each that has some.
 */
#define LONGEST_SLEEP_NS  10000000u
#define WATCHFUL_SLEEP_NS 2000000u
#define SLEEP_A_GROUP_NS  500000u

struct clock {
    pthread_mutex_t mutex;
    int could_be_cancelled;      /* the thread that holds it, before it did */
    uint64_t device_ns, real_ns; /* the same moment in both times */
    uint64_t queue_end_ns;       /* when all that is queued ends */
    uint64_t full_end_ns;        /* when what fills the GPU ends */
    uint64_t consumed_ns, busy_ns;
    uint64_t looked_at_ns; /* real time of the last read of the neighbours */
    struct sim_neighbours neighbours;
    struct sim_turns *turns; /* NULL: the account of turns is not held */
    uint64_t logged;         /* windows in it that were read */
    uint64_t ran_until_ns;   /* latest moment at which the GPU was ours, as of the last read */
    double rate;     /* at which our time passes in our turn: beside our group, less what paging takes */
    double carry_ns; /* device time that has passed and is less than one */
    struct sim_demand queued; /* amounts of all that is queued; how it stands, times its duration */
    uint64_t block_ns;
    double dram_share; /* of the memory's bandwidth, that what is queued takes */
    struct sim_marks marks;
};

static struct clock clocks[SIM_MAX_GPUS];

static void store(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static struct sim_activity_slot *own_slot(unsigned gpu) {
    return &sim_driver.activity->gpu[gpu].slot[sim_driver.slot];
}

static void take_over_slot(unsigned gpu) {
    sim_activity_take_slot(&sim_driver.activity->gpu[gpu], sim_driver.slot, sim_mps.server, sim_now_ns());
    int could_be_cancelled = pgpu_cancellation_defer();
    struct sim_turns *turns = sim_turn_account_enter(gpu, sim_now_ns());
    sim_turns_need(turns, sim_driver.slot, 0);
    sim_turn_account_leave(gpu);
    pgpu_cancellation_restore(could_be_cancelled);
}

void sim_clock_start(void) {
    uint64_t now_ns = sim_now_ns();
    for (unsigned gpu = 0; gpu < SIM_MAX_GPUS; gpu++) {
        pthread_mutex_init(&clocks[gpu].mutex, NULL);
        clocks[gpu].device_ns = clocks[gpu].real_ns = now_ns;
        clocks[gpu].neighbours = SIM_NOBODY;
        clocks[gpu].rate = 1;
        take_over_slot(gpu);
    }
}

static uint64_t pending_ns(const struct clock *clock) {
    return clock->queue_end_ns > clock->device_ns ? clock->queue_end_ns - clock->device_ns : 0;
}

/* Real time, turns of others left out, in which so much of ours passes. */
static uint64_t busy_time(const struct clock *clock, uint64_t device_ns) {
    double real_ns = (double)device_ns / clock->rate;
    if (clock->rate >= 1) return device_ns;
    return (uint64_t)(real_ns < FAR_NS ? real_ns : FAR_NS) + 1;
}

static struct sim_demand mean_of(const struct clock *clock) {
    struct sim_demand mean = {0};
    uint64_t pending = pending_ns(clock);
    if (pending > 0) sim_demand_add(&mean, &clock->queued, 1 / (double)pending);
    mean.slots = mean.slots < 1 ? mean.slots : 1;
    mean.sm_share = mean.sm_share < 1 ? mean.sm_share : 1;
    return mean;
}

/* When so much device time will have passed. */
static uint64_t end_ns(const struct clock *clock, uint64_t device_ns) {
    uint64_t need_ns = busy_time(clock, device_ns);
    return clock->turns == NULL ? clock->real_ns + need_ns
                                : sim_turns_end_ns(clock->turns, sim_driver.slot, need_ns);
}

static void publish(unsigned gpu, const struct clock *clock) {
    struct sim_activity_slot *slot = own_slot(gpu);
    uint64_t pending = pending_ns(clock);
    if (pending > 0) slot->demand = mean_of(clock);
    slot->dram_share = clock->dram_share;
    store(&slot->server, sim_mps.server);
    store(&slot->block_ns, clock->block_ns);
    store(&slot->consumed_ns, clock->consumed_ns);
    store(&slot->busy_ns, clock->busy_ns);
    store(&slot->pending_ns, pending);
    store(&slot->pending_busy_ns, busy_time(clock, pending));
    store(&slot->updated_ns, clock->real_ns);
    store(&slot->until_ns, pending == 0 ? 0 : end_ns(clock, pending));
}

static void remember(struct clock *clock, uint64_t real_ns, double rate) {
    sim_marks_add(&clock->marks, (struct sim_mark){clock->device_ns, real_ns, rate});
}

static void count_usage(unsigned gpu, const struct clock *clock, uint64_t done_ns) {
    struct sim_usage *usage = &own_slot(gpu)->usage;
    const struct sim_demand mean = mean_of(clock);
    double real_ns = (double)busy_time(clock, done_ns);
    usage->sms_ns += mean.sm_share * real_ns;
    usage->slots_ns += mean.slots * real_ns;
    usage->dram_ns += clock->dram_share * (double)done_ns;
    usage->fp32_ns += mean.fp32_ns * (double)done_ns;
}

/* The rest of the queue has the rest of its summed demand. */
static void work_off(unsigned gpu, struct clock *clock, uint64_t done_ns) {
    uint64_t pending = pending_ns(clock);
    count_usage(gpu, clock, done_ns);
    struct sim_demand left = {0};
    if (done_ns < pending) sim_demand_add(&left, &clock->queued, 1 - (double)done_ns / (double)pending);
    if (done_ns >= pending) clock->block_ns = 0;
    clock->queued = left;
    clock->consumed_ns += done_ns;
    clock->busy_ns += busy_time(clock, done_ns);
    clock->device_ns += done_ns;
}

static double dram_share(const struct sim_gpu *gpu, const struct sim_demand *mean) {
    double use_ns[SIM_RESOURCES];
    struct sim_conditions alone = sim_conditions_alone(gpu, mean);
    sim_demand_uses(gpu, mean, &alone, use_ns);
    return use_ns[SIM_DRAM];
}

/* As fast as our group lets us be, slowed by the managed memory that is missing. */
static void pace(unsigned gpu, struct clock *clock) {
    const struct sim_demand mean = mean_of(clock);
    clock->rate = clock->neighbours.rate;
    clock->dram_share = dram_share(&sim_driver.config.gpu[gpu], &mean);
    if (sim_residency_total(gpu) > 0) clock->rate *= sim_residency_speed(gpu, &mean);
}

/* All that was queued is done; from here on time passes as it is. */
static void finish(unsigned gpu, struct clock *clock, uint64_t at_ns) {
    work_off(gpu, clock, pending_ns(clock));
    clock->real_ns = at_ns;
    clock->carry_ns = 0;
    remember(clock, at_ns, 1);
}

static void run_step(unsigned gpu, struct clock *clock, uint64_t to_ns) {
    double passed_ns = (double)(to_ns - clock->real_ns) * clock->rate + clock->carry_ns;
    double pending = (double)pending_ns(clock);
    if (passed_ns >= pending) {
        double took_ns = (pending - clock->carry_ns) / clock->rate;
        uint64_t at_ns = clock->real_ns + (uint64_t)(took_ns > 0 ? took_ns : 0);
        finish(gpu, clock, at_ns < to_ns ? at_ns : to_ns);
        return;
    }
    uint64_t done_ns = (uint64_t)passed_ns;
    clock->carry_ns = passed_ns - (double)done_ns;
    if (done_ns > 0) work_off(gpu, clock, done_ns);
    clock->real_ns = to_ns;
}

/* Missing memory comes in while time passes, so that the pace changes. */
static void run_paging(unsigned gpu, struct clock *clock, uint64_t to_ns) {
    const struct sim_demand mean = mean_of(clock);
    uint64_t device_ns = clock->device_ns, until_ns = clock->real_ns + LOOK_PERIOD_NS;
    run_step(gpu, clock, mean.managed_bytes > 0 && until_ns < to_ns ? until_ns : to_ns);
    sim_residency_touch(gpu, &mean, clock->device_ns - device_ns);
    pace(gpu, clock);
    if (pending_ns(clock) > 0) remember(clock, clock->real_ns, clock->rate);
}

/* The GPU was ours. */
static void run(unsigned gpu, struct clock *clock, uint64_t from_ns, uint64_t to_ns) {
    if (pending_ns(clock) == 0) return;
    clock->real_ns = from_ns;
    if (from_ns != clock->ran_until_ns) remember(clock, from_ns, clock->rate);
    while (clock->real_ns < to_ns && pending_ns(clock) > 0)
        if (sim_residency_total(gpu) > 0)
            run_paging(gpu, clock, to_ns);
        else
            run_step(gpu, clock, to_ns);
    clock->ran_until_ns = to_ns;
}

/* The windows that we have had since the last read. */
static void run_windows(unsigned gpu, struct clock *clock) {
    const struct sim_turns *turns = clock->turns;
    uint64_t at = clock->logged > 0 ? clock->logged - 1 : 0;
    if (at + SIM_WINDOW_LOG < turns->logged) at = turns->logged - SIM_WINDOW_LOG;
    for (; at < turns->logged; at++) {
        const struct sim_window *window = &turns->log[at % SIM_WINDOW_LOG];
        if (window->runner != sim_driver.slot || window->to_ns <= clock->real_ns) continue;
        run(gpu, clock, window->from_ns > clock->real_ns ? window->from_ns : clock->real_ns, window->to_ns);
    }
    clock->logged = turns->logged;
}

/* The queue as it is published: half a nanosecond of rounding is not worth a turn. */
static uint64_t stated_ns(const struct clock *clock) {
    uint64_t pending = pending_ns(clock), carried = pending > 0 && clock->carry_ns >= 0.5 ? 1 : 0;
    return pending - carried;
}

/* What was rounded off, or is no longer in the log, is done when the account has it as done. Where the pace
 * changes with memory that is paged in, the account is too high or too low: then only what was not published
 * is done. */
static void settle(unsigned gpu, struct clock *clock) {
    const struct sim_runner *own = &clock->turns->runner[sim_driver.slot];
    bool is_over = own->left_ns == 0 && (sim_residency_total(gpu) == 0 || stated_ns(clock) == 0);
    if (is_over && pending_ns(clock) > 0)
        finish(gpu, clock, own->emptied_ns > clock->real_ns ? own->emptied_ns : clock->real_ns);
}

static void idle(struct clock *clock, uint64_t now_ns) {
    if (now_ns <= clock->real_ns) return;
    if (pending_ns(clock) == 0) clock->device_ns += now_ns - clock->real_ns;
    clock->real_ns = now_ns;
}

static void hold_turns(unsigned gpu, struct clock *clock) {
    if (clock->turns == NULL) clock->turns = sim_turn_account_enter(gpu, sim_now_ns());
}

static void advance(unsigned gpu, struct clock *clock) {
    if (pending_ns(clock) == 0) {
        idle(clock, sim_now_ns());
        return;
    }
    hold_turns(gpu, clock);
    run_windows(gpu, clock);
    settle(gpu, clock);
    idle(clock, clock->turns->now_ns);
}

static void read_neighbours(unsigned gpu, struct clock *clock) {
    const struct sim_turns *turns = clock->turns == NULL ? sim_turn_account_glance(gpu) : clock->turns;
    double rate = clock->rate;
    clock->looked_at_ns = clock->real_ns;
    publish(gpu, clock);
    clock->neighbours = sim_neighbours_read(gpu, turns, clock->real_ns);
    pace(gpu, clock);
    publish(gpu, clock);
    sim_activity_sample(&sim_driver.activity->gpu[gpu], clock->real_ns);
    if (pending_ns(clock) > 0 && clock->rate != rate) remember(clock, clock->real_ns, clock->rate);
}

/* Lock a GPU's clock and bring it up to now. Waiting for the account sleeps and opens files, both
 * cancellation points: a thread that is cancelled there would leave both locked. */
static struct clock *enter(unsigned gpu) {
    struct clock *clock = &clocks[gpu];
    int could_be_cancelled = pgpu_lock_leaf(&clock->mutex);
    clock->could_be_cancelled = could_be_cancelled;
    advance(gpu, clock);
    if (clock->real_ns >= clock->looked_at_ns + LOOK_PERIOD_NS) read_neighbours(gpu, clock);
    return clock;
}

/* What we need of the GPU, at our present rate. */
static void state_need(unsigned gpu, const struct clock *clock) {
    struct sim_runner *own = &clock->turns->runner[sim_driver.slot];
    own->server = sim_mps.server;
    own->window_ns = sim_neighbours_window_ns(gpu);
    sim_turns_need(clock->turns, sim_driver.slot, busy_time(clock, stated_ns(clock)));
}

static void leave(unsigned gpu, struct clock *clock) {
    if (clock->turns != NULL) {
        state_need(gpu, clock);
        clock->turns = NULL;
        sim_turn_account_leave(gpu);
    }
    pgpu_unlock_leaf(&clock->mutex, clock->could_be_cancelled);
}

uint64_t sim_clock_now(unsigned gpu) {
    struct clock *clock = enter(gpu);
    uint64_t device_ns = clock->device_ns;
    leave(gpu, clock);
    return device_ns;
}

static uint64_t later(uint64_t a_ns, uint64_t b_ns) {
    return a_ns > b_ns ? a_ns : b_ns;
}

static uint64_t place(struct clock *clock, uint64_t not_before_ns, const struct sim_clock_work *work) {
    uint64_t at_ns = later(not_before_ns, clock->device_ns);
    if (work->fills_gpu) at_ns = later(at_ns, clock->full_end_ns);
    at_ns += work->cost_ns;
    if (work->fills_gpu) clock->full_end_ns = at_ns;
    clock->queue_end_ns = later(clock->queue_end_ns, at_ns);
    if (work->demand != NULL) sim_demand_queue(&clock->queued, work->demand, (double)work->cost_ns);
    clock->block_ns = later(clock->block_ns, work->block_ns);
    return at_ns;
}

/* We want the GPU from now on: earlier windows are not ours. */
static void begin(unsigned gpu, struct clock *clock) {
    clock->logged = clock->turns->logged;
    clock->ran_until_ns = 0;
    idle(clock, clock->turns->now_ns);
    if (clock->real_ns >= clock->looked_at_ns + LEAST_LOOK_NS) read_neighbours(gpu, clock);
}

/* Where another context has work, a moment in our queue is the shortest work there is. */
static uint64_t cost_ns(unsigned gpu, const struct clock *clock, const struct sim_clock_work *work) {
    if (!work->needs_turn || pending_ns(clock) > 0) return work->cost_ns;
    return sim_turns_next_busy(sim_turn_account_glance(gpu), 0) == SIM_RUNNERS ? 0 : 1;
}

uint64_t sim_clock_queue(unsigned gpu, uint64_t not_before_ns, const struct sim_clock_work *given) {
    struct clock *clock = enter(gpu);
    struct sim_clock_work costed = *given, *work = &costed;
    work->cost_ns = cost_ns(gpu, clock, given);
    bool begins = pending_ns(clock) == 0 && work->cost_ns > 0;
    if (work->cost_ns > 0) hold_turns(gpu, clock);
    if (begins) begin(gpu, clock);
    uint64_t at_ns = place(clock, not_before_ns, work);
    if (begins) {
        pace(gpu, clock);
        publish(gpu, clock);
        remember(clock, clock->real_ns, clock->rate);
    }
    leave(gpu, clock);
    return at_ns;
}

uint64_t sim_clock_used_at(unsigned gpu, uint64_t at_ns) {
    struct clock *clock = enter(gpu);
    uint64_t used_ns = at_ns > clock->device_ns ? clock->consumed_ns + (at_ns - clock->device_ns) : 0;
    if (used_ns > 0) publish(gpu, clock);
    leave(gpu, clock);
    return used_ns;
}

bool sim_clock_has_come(unsigned gpu, uint64_t at_ns) {
    return at_ns <= sim_clock_now(gpu);
}

static uint64_t longest_sleep_ns(const struct sim_neighbours *neighbours) {
    if (neighbours->groups < 2) return neighbours->has_others ? WATCHFUL_SLEEP_NS : LONGEST_SLEEP_NS;
    uint64_t longest_ns = (uint64_t)neighbours->groups * SLEEP_A_GROUP_NS;
    return longest_ns < LONGEST_SLEEP_NS ? longest_ns : LONGEST_SLEEP_NS;
}

/* Real time to sleep until `at_ns`, as things are; 0: it has come. */
static uint64_t sleep_ns(unsigned gpu, uint64_t at_ns) {
    struct clock *clock = enter(gpu);
    uint64_t left_ns = 0;
    if (at_ns > clock->device_ns) {
        left_ns = later(end_ns(clock, at_ns - clock->device_ns) - clock->real_ns, 1);
        publish(gpu, clock);
    }
    uint64_t longest_ns = longest_sleep_ns(&clock->neighbours);
    leave(gpu, clock);
    return left_ns < longest_ns ? left_ns : longest_ns;
}

void sim_clock_wait(unsigned gpu, uint64_t at_ns) {
    for (uint64_t left_ns; sim_outcome() == CUDA_SUCCESS && (left_ns = sleep_ns(gpu, at_ns)) > 0;) {
        struct timespec pause = {.tv_nsec = (long)left_ns};
        nanosleep(&pause, NULL);
    }
}

uint64_t sim_clock_real_ns(unsigned gpu, uint64_t at_ns) {
    struct clock *clock = enter(gpu);
    struct sim_mark now = {clock->device_ns, clock->real_ns, clock->rate};
    uint64_t real_ns = sim_marks_real_ns(&clock->marks, now, at_ns);
    leave(gpu, clock);
    return real_ns;
}
