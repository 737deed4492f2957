#include "clock.h"

#include <pthread.h>
#include <time.h>

#include "driver.h"

/* The neighbours are counted anew this often, and a waiting process looks up at least so often. */
#define COUNT_PERIOD_NS  1000000u
#define LONGEST_SLEEP_NS 10000000u
/* Queues that should last longer than this are believed only of living processes. */
#define TRUSTED_QUEUE_NS 200000000u
#define MARKS            64

struct mark {
    uint64_t device_ns, real_ns;
};

struct clock {
    pthread_mutex_t mutex;
    uint64_t device_ns, real_ns; /* the same moment in both times */
    uint64_t queue_end_ns;       /* when all that is queued ends */
    uint64_t full_end_ns;        /* when what fills the GPU ends */
    uint64_t consumed_ns;
    uint64_t count_at_ns; /* real time of the next look at the neighbours */
    unsigned sharers;     /* processes with queued work, ourselves included */
    struct mark mark[MARKS];
    unsigned mark_count;
};

static struct clock clocks[SIM_MAX_GPUS];

static void store(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static uint64_t load(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static struct sim_activity_slot *own_slot(unsigned gpu) {
    return &sim_driver.activity->gpu[gpu].slot[sim_driver.slot];
}

/* A slot's former owner is gone: what it used stays in the device's total. */
static void take_over_slot(unsigned gpu) {
    struct sim_activity_gpu *activity = &sim_driver.activity->gpu[gpu];
    struct sim_activity_slot *slot = own_slot(gpu);
    __atomic_fetch_add(&activity->retired_ns, load(&slot->consumed_ns), __ATOMIC_RELAXED);
    store(&slot->until_ns, 0);
    store(&slot->pending_ns, 0);
    store(&slot->consumed_ns, 0);
}

void sim_clock_start(void) {
    uint64_t now_ns = sim_now_ns();
    for (unsigned gpu = 0; gpu < SIM_MAX_GPUS; gpu++) {
        pthread_mutex_init(&clocks[gpu].mutex, NULL);
        clocks[gpu].device_ns = clocks[gpu].real_ns = now_ns;
        clocks[gpu].sharers = 1;
        take_over_slot(gpu);
    }
}

static bool is_busy(const struct sim_activity_slot *slot, unsigned index, uint64_t now_ns) {
    uint64_t until_ns = load(&slot->until_ns);
    if (until_ns <= now_ns || load(&slot->pending_ns) == 0) return false;
    if (until_ns - now_ns < TRUSTED_QUEUE_NS) return true;
    return sim_device_slot_is_alive(index);
}

static unsigned count_sharers(unsigned gpu, uint64_t now_ns) {
    const struct sim_activity_gpu *activity = &sim_driver.activity->gpu[gpu];
    unsigned sharers = 1;
    for (unsigned i = 0; i < PGPU_MAX_SLOTS; i++)
        if (i != sim_driver.slot && is_busy(&activity->slot[i], i, now_ns)) sharers++;
    return sharers;
}

static uint64_t pending_ns(const struct clock *clock) {
    return clock->queue_end_ns > clock->device_ns ? clock->queue_end_ns - clock->device_ns : 0;
}

static void publish(unsigned gpu, const struct clock *clock) {
    struct sim_activity_slot *slot = own_slot(gpu);
    uint64_t pending = pending_ns(clock);
    store(&slot->consumed_ns, clock->consumed_ns);
    store(&slot->pending_ns, pending);
    store(&slot->updated_ns, clock->real_ns);
    store(&slot->until_ns, pending == 0 ? 0 : clock->real_ns + pending * clock->sharers);
}

static void remember(struct clock *clock) {
    struct mark *mark = &clock->mark[clock->mark_count++ % MARKS];
    mark->device_ns = clock->device_ns;
    mark->real_ns = clock->real_ns;
}

/* Busy time passes at 1/sharers, idle time as it is. */
static void advance(struct clock *clock, uint64_t now_ns) {
    uint64_t real_ns = now_ns - clock->real_ns, pending = pending_ns(clock);
    uint64_t busy_ns = real_ns / clock->sharers;
    if (busy_ns > pending) busy_ns = pending;
    uint64_t idle_ns = real_ns - busy_ns * clock->sharers;
    if (busy_ns == pending) clock->device_ns += idle_ns;
    clock->device_ns += busy_ns;
    clock->consumed_ns += busy_ns;
    clock->real_ns = now_ns;
}

static void update(unsigned gpu, struct clock *clock) {
    uint64_t now_ns = sim_now_ns();
    if (now_ns > clock->real_ns) advance(clock, now_ns);
    if (now_ns < clock->count_at_ns) return;
    clock->count_at_ns = now_ns + COUNT_PERIOD_NS;
    clock->sharers = count_sharers(gpu, now_ns);
    remember(clock);
    publish(gpu, clock);
    sim_activity_sample(&sim_driver.activity->gpu[gpu], now_ns);
}

uint64_t sim_clock_now(unsigned gpu) {
    struct clock *clock = &clocks[gpu];
    pthread_mutex_lock(&clock->mutex);
    update(gpu, clock);
    uint64_t device_ns = clock->device_ns;
    pthread_mutex_unlock(&clock->mutex);
    return device_ns;
}

static uint64_t later(uint64_t a_ns, uint64_t b_ns) {
    return a_ns > b_ns ? a_ns : b_ns;
}

uint64_t sim_clock_queue(unsigned gpu, uint64_t not_before_ns, uint64_t cost_ns, bool fills_gpu) {
    struct clock *clock = &clocks[gpu];
    pthread_mutex_lock(&clock->mutex);
    update(gpu, clock);
    bool was_idle = pending_ns(clock) == 0;
    uint64_t end_ns = later(not_before_ns, clock->device_ns);
    if (fills_gpu) end_ns = later(end_ns, clock->full_end_ns);
    end_ns += cost_ns;
    if (fills_gpu) clock->full_end_ns = end_ns;
    clock->queue_end_ns = later(clock->queue_end_ns, end_ns);
    /* The neighbours learn at once that we want the device, and its end at the next look. */
    if (was_idle && cost_ns > 0) publish(gpu, clock);
    pthread_mutex_unlock(&clock->mutex);
    return end_ns;
}

uint64_t sim_clock_used_at(unsigned gpu, uint64_t at_ns) {
    struct clock *clock = &clocks[gpu];
    pthread_mutex_lock(&clock->mutex);
    update(gpu, clock);
    uint64_t used_ns = at_ns > clock->device_ns ? clock->consumed_ns + (at_ns - clock->device_ns) : 0;
    if (used_ns > 0) publish(gpu, clock);
    pthread_mutex_unlock(&clock->mutex);
    return used_ns;
}

bool sim_clock_has_come(unsigned gpu, uint64_t at_ns) {
    return at_ns <= sim_clock_now(gpu);
}

/* Real time to sleep until `at_ns`, as things are; 0: it has come. */
static uint64_t sleep_ns(unsigned gpu, uint64_t at_ns) {
    struct clock *clock = &clocks[gpu];
    pthread_mutex_lock(&clock->mutex);
    update(gpu, clock);
    uint64_t left_ns = at_ns > clock->device_ns ? (at_ns - clock->device_ns) * clock->sharers : 0;
    if (left_ns > 0) publish(gpu, clock);
    pthread_mutex_unlock(&clock->mutex);
    return left_ns < LONGEST_SLEEP_NS ? left_ns : LONGEST_SLEEP_NS;
}

void sim_clock_wait(unsigned gpu, uint64_t at_ns) {
    for (uint64_t left_ns; (left_ns = sleep_ns(gpu, at_ns)) > 0;) {
        struct timespec pause = {.tv_nsec = (long)left_ns};
        nanosleep(&pause, NULL);
    }
}

/* The nearest remembered moment not after `at_ns`; device time runs like real time from there. */
uint64_t sim_clock_real_ns(unsigned gpu, uint64_t at_ns) {
    struct clock *clock = &clocks[gpu];
    pthread_mutex_lock(&clock->mutex);
    update(gpu, clock);
    struct mark after = {clock->device_ns, clock->real_ns}, before = after;
    unsigned kept = clock->mark_count < MARKS ? clock->mark_count : MARKS;
    for (unsigned back = 1; back <= kept && before.device_ns > at_ns; back++) {
        after = before;
        before = clock->mark[(clock->mark_count - back) % MARKS];
    }
    pthread_mutex_unlock(&clock->mutex);
    if (at_ns <= before.device_ns || after.device_ns <= before.device_ns)
        return before.real_ns - (before.device_ns - at_ns) * (at_ns < before.device_ns) +
               (at_ns - before.device_ns) * (at_ns > before.device_ns);
    double rate = (double)(after.real_ns - before.real_ns) / (double)(after.device_ns - before.device_ns);
    return before.real_ns + (uint64_t)((double)(at_ns - before.device_ns) * rate);
}
