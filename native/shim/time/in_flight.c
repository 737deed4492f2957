#include "time/in_flight.h"

#include <string.h>

#include "clock.h"
#include "slice/slice.h"
#include "time/batches.h"
#include "time/board.h"
#include "time/neighbours.h"

/* The count in a slot's word, above one bit for each GPU. */
#define COUNT_ONE (1ull << PGPU_MAX_GPUS)
/* Work counts as done this long after its expected end: its process may have died. */
#define BELIEVED_NS  1000000000ull
#define MOST_COUNTED 255u
#define LATELY_NS    100000000ull

static struct {
    unsigned entered;      /* calls of this process between enter and leave */
    unsigned open_batches; /* of all threads */
    uint64_t end_ns;       /* when all that is measured should be done; 0: nothing is in flight */
    uint64_t copied_at_ns; /* when copies should be done, which are not measured */
} flights[PGPU_MAX_GPUS];

static uint64_t load(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static void store(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static struct pgpu_usage_slot *own_slot(void) {
    if (!pgpu_meter_is_claimed(&pgpu_slice_meter)) return NULL;
    return &pgpu_slice_meter.usage->slot[pgpu_slice_meter.slot];
}

static void raise(uint64_t *word, uint64_t value) {
    uint64_t seen = pgpu_board_load(word);
    while (seen < value &&
           !__atomic_compare_exchange_n(word, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

/* How many processes of the job have something in flight; `since_us`: the sum of the times since when. */
static unsigned count_in_flight(int gpu, uint64_t now_ns, uint64_t *since_us) {
    const struct pgpu_usage *usage = pgpu_slice_meter.usage;
    uint32_t touched = __atomic_load_n(&usage->slots_touched, __ATOMIC_RELAXED);
    unsigned count = 0;
    *since_us = 0;
    for (uint32_t at = 0; at < touched && at < PGPU_MAX_SLOTS; at++) {
        const struct pgpu_usage_slot *slot = &usage->slot[at];
        if ((__atomic_load_n(&slot->in_flight, __ATOMIC_SEQ_CST) >> gpu & 1) == 0 ||
            now_ns >= pgpu_board_load(&slot->in_flight_until_ns) + BELIEVED_NS)
            continue;
        *since_us += pgpu_board_load(&slot->in_flight_since_ns) / 1000;
        count++;
    }
    return count;
}

/* A waiting process publishes its demand each time that it checks. */
bool pgpu_in_flight_is_by_us(uint64_t now_ns) {
    const struct pgpu_usage *usage = pgpu_slice_meter.usage;
    if (own_slot() == NULL) return false;
    uint32_t touched = __atomic_load_n(&usage->slots_touched, __ATOMIC_RELAXED);
    for (uint32_t at = 0; at < touched && at < PGPU_MAX_SLOTS; at++) {
        bool is_recent = now_ns < pgpu_board_load(&usage->slot[at].in_flight_until_ns) + LATELY_NS;
        if (is_recent && at != pgpu_slice_meter.slot) return false;
    }
    return true;
}

/* Of processes that do so at once the last one's words count, until the next one begins or ends. */
static void publish_count(int gpu, uint64_t now_ns) {
    uint64_t since_us, count;
    if (pgpu_board_of(gpu) == NULL || !pgpu_neighbours_by_user(gpu)) return;
    count = pgpu_least_ns(count_in_flight(gpu, now_ns, &since_us), MOST_COUNTED);
    pgpu_board_store(&pgpu_board_own()->in_flight[gpu],
                     count << PGPU_BOARD_COUNT_SHIFT | (since_us & PGPU_BOARD_SINCE_MASK));
}

/* A thread that finds at this moment that nothing is in flight read another count, so its compare-and-swap
 * fails. */
static void publish_in_flight(struct pgpu_usage_slot *slot, int gpu, uint64_t now_ns) {
    uint64_t seen = __atomic_load_n(&slot->in_flight, __ATOMIC_RELAXED), next;
    if ((seen >> gpu & 1) == 0) {
        raise(&slot->in_flight_until_ns, now_ns);
        store(&slot->in_flight_since_ns, now_ns);
    }
    do
        next = (seen | 1ull << gpu) + COUNT_ONE;
    while (!__atomic_compare_exchange_n(&slot->in_flight, &seen, next, true, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED));
    if ((seen >> gpu & 1) == 0) publish_count(gpu, now_ns);
}

static void publish_busy_since(int gpu, uint64_t now_ns) {
    struct pgpu_board_gpu *own = pgpu_board_of(gpu);
    uint64_t none = 0;
    if (own == NULL || !__atomic_compare_exchange_n(&own->busy_since_ns, &none, now_ns, false,
                                                    __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
        return;
    pgpu_board_store(&own->occupied_since_ns, now_ns);
}

/* Nothing of any process is in flight. The job counts as one that wants the GPU for a while: a program
 * launches again a moment after the end of what it waited for. */
static void publish_idle(struct pgpu_board_gpu *own, uint64_t now_ns) {
    raise(&own->wanted_ns, now_ns);
    uint64_t since_ns = __atomic_exchange_n(&own->occupied_since_ns, 0, __ATOMIC_RELAXED);
    if (since_ns != 0 && now_ns > since_ns) pgpu_board_add(&own->occupied_ns, now_ns - since_ns);
    pgpu_board_store(&own->busy_since_ns, 0);
}

void pgpu_in_flight_enter(int gpu, uint64_t now_ns) {
    struct pgpu_usage_slot *slot = own_slot();
    __atomic_fetch_add(&flights[gpu].entered, 1, __ATOMIC_SEQ_CST);
    if (slot != NULL) publish_in_flight(slot, gpu, now_ns);
    publish_busy_since(gpu, now_ns);
}

void pgpu_in_flight_leave(int gpu) {
    __atomic_fetch_sub(&flights[gpu].entered, 1, __ATOMIC_SEQ_CST);
}

void pgpu_in_flight_expect(int gpu, uint64_t until_ns) {
    struct pgpu_board_gpu *own = pgpu_board_of(gpu);
    struct pgpu_usage_slot *slot = own_slot();
    if (own != NULL) raise(&own->busy_until_ns, until_ns);
    if (slot != NULL) raise(&slot->in_flight_until_ns, until_ns);
}

void pgpu_in_flight_note_done(int gpu, uint64_t until_ns) {
    struct pgpu_usage_slot *slot = own_slot();
    if (slot == NULL) return;
    store(&slot->in_flight_since_ns, until_ns);
    publish_count(gpu, until_ns);
}

void pgpu_in_flight_publish_demand(int gpu, uint64_t now_ns) {
    struct pgpu_board_gpu *own = pgpu_board_of(gpu);
    if (own == NULL) return;
    pgpu_board_store(&own->wanted_ns, now_ns);
    uint64_t end_ns = load(&flights[gpu].end_ns);
    uint64_t queued_ns = end_ns > now_ns ? end_ns - now_ns : 0;
    pgpu_in_flight_expect(gpu, now_ns + queued_ns * pgpu_neighbours_slowdown(gpu));
}

void pgpu_in_flight_open_batch(int gpu) {
    __atomic_fetch_add(&flights[gpu].open_batches, 1, __ATOMIC_SEQ_CST);
}

void pgpu_in_flight_close_batch(int gpu) {
    __atomic_fetch_sub(&flights[gpu].open_batches, 1, __ATOMIC_SEQ_CST);
}

void pgpu_in_flight_begin(int gpu, uint64_t now_ns) {
    if (pgpu_board_of(gpu) == NULL || load(&flights[gpu].end_ns) != 0) return;
    pgpu_neighbours_begin(gpu, now_ns);
}

/* A plain store: of two threads that add at once one addition may be lost, which a forecast tolerates. */
void pgpu_in_flight_add(int gpu, uint64_t now_ns, uint64_t cost_ns) {
    store(&flights[gpu].end_ns, pgpu_most_ns(load(&flights[gpu].end_ns), now_ns) + cost_ns);
}

void pgpu_in_flight_add_copy(int gpu, uint64_t now_ns, uint64_t cost_ns) {
    uint64_t copied_at_ns = pgpu_most_ns(load(&flights[gpu].copied_at_ns), now_ns) + cost_ns;
    store(&flights[gpu].copied_at_ns, copied_at_ns);
    pgpu_in_flight_expect(gpu, copied_at_ns);
}

/* In this order: a batch is put among the unfinished ones before it stops being open. */
static bool is_idle(int gpu, uint64_t now_ns) {
    if (__atomic_load_n(&flights[gpu].entered, __ATOMIC_SEQ_CST) != 0) return false;
    if (__atomic_load_n(&flights[gpu].open_batches, __ATOMIC_SEQ_CST) != 0) return false;
    if (pgpu_batches_left(gpu) != 0) return false;
    store(&flights[gpu].end_ns, 0);
    return load(&flights[gpu].copied_at_ns) <= now_ns;
}

bool pgpu_in_flight_settle(int gpu, uint64_t now_ns) {
    struct pgpu_board_gpu *own = pgpu_board_of(gpu);
    struct pgpu_usage_slot *slot = own_slot();
    if (slot == NULL) return false;
    uint64_t seen = __atomic_load_n(&slot->in_flight, __ATOMIC_SEQ_CST), since_us;
    if (!is_idle(gpu, now_ns)) return false;
    if (!__atomic_compare_exchange_n(&slot->in_flight, &seen, seen & ~(1ull << gpu), false, __ATOMIC_SEQ_CST,
                                     __ATOMIC_RELAXED))
        return false; /* another thread came in between */
    publish_count(gpu, now_ns);
    if (own == NULL || count_in_flight(gpu, now_ns, &since_us) != 0) return true;
    publish_idle(own, now_ns);
    if (count_in_flight(gpu, now_ns, &since_us) != 0)
        publish_busy_since(gpu, now_ns); /* it came before that store */
    return true;
}

void pgpu_in_flight_after_fork_in_child(void) {
    memset(flights, 0, sizeof(flights));
}
