#include "time/in_flight.h"

#include <string.h>

#include "time/board.h"
#include "slice/slice.h"
#include "time/timing.h"

/* In a slot's word, above a bit for each GPU. */
#define COUNT_ONE (1ull << PGPU_MAX_GPUS)
/* What should have been over for so long is over: its process may have died. */
#define BELIEVED_NS 1000000000ull

/* Calls of this process between enter and leave. */
static unsigned entered[PGPU_MAX_GPUS];

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

/* Whoever meanwhile finds that nothing is in flight has seen another count, and so does not say it. */
static void tell(struct pgpu_usage_slot *slot, int gpu, uint64_t now_ns) {
    uint64_t seen = __atomic_load_n(&slot->in_flight, __ATOMIC_RELAXED), told;
    if ((seen >> gpu & 1) == 0) raise(&slot->in_flight_until_ns, now_ns);
    do
        told = (seen | 1ull << gpu) + COUNT_ONE;
    while (!__atomic_compare_exchange_n(&slot->in_flight, &seen, told, true, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED));
}

static void tell_neighbours(int gpu, uint64_t now_ns) {
    struct pgpu_board_gpu *own = pgpu_board_of(gpu);
    uint64_t none = 0;
    if (own != NULL)
        __atomic_compare_exchange_n(&own->busy_since_ns, &none, now_ns, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_RELAXED);
}

void pgpu_in_flight_enter(int gpu, uint64_t now_ns) {
    struct pgpu_usage_slot *slot = own_slot();
    __atomic_fetch_add(&entered[gpu], 1, __ATOMIC_SEQ_CST);
    if (slot != NULL) tell(slot, gpu, now_ns);
    tell_neighbours(gpu, now_ns);
}

void pgpu_in_flight_leave(int gpu) {
    __atomic_fetch_sub(&entered[gpu], 1, __ATOMIC_SEQ_CST);
}

void pgpu_in_flight_expect(int gpu, uint64_t until_ns) {
    struct pgpu_board_gpu *own = pgpu_board_of(gpu);
    struct pgpu_usage_slot *slot = own_slot();
    if (own != NULL) raise(&own->busy_until_ns, until_ns);
    if (slot != NULL) raise(&slot->in_flight_until_ns, until_ns);
}

static bool is_over(int gpu, uint64_t now_ns) {
    return __atomic_load_n(&entered[gpu], __ATOMIC_SEQ_CST) == 0 && pgpu_timing_is_idle(gpu, now_ns);
}

/* Of any process of the job. */
static bool is_any_in_flight(int gpu, uint64_t now_ns) {
    const struct pgpu_usage *usage = pgpu_slice_meter.usage;
    uint32_t touched = __atomic_load_n(&usage->slots_touched, __ATOMIC_RELAXED);
    for (uint32_t at = 0; at < touched && at < PGPU_MAX_SLOTS; at++) {
        uint64_t bits = __atomic_load_n(&usage->slot[at].in_flight, __ATOMIC_SEQ_CST);
        if ((bits >> gpu & 1) != 0 &&
            now_ns < pgpu_board_load(&usage->slot[at].in_flight_until_ns) + BELIEVED_NS)
            return true;
    }
    return false;
}

bool pgpu_in_flight_settle(int gpu, uint64_t now_ns) {
    struct pgpu_board_gpu *own = pgpu_board_of(gpu);
    struct pgpu_usage_slot *slot = own_slot();
    if (slot == NULL) return false;
    uint64_t seen = __atomic_load_n(&slot->in_flight, __ATOMIC_SEQ_CST);
    if (!is_over(gpu, now_ns)) return false;
    if (!__atomic_compare_exchange_n(&slot->in_flight, &seen, seen & ~(1ull << gpu), false, __ATOMIC_SEQ_CST,
                                     __ATOMIC_RELAXED))
        return false; /* another thread came in between */
    if (own == NULL || is_any_in_flight(gpu, now_ns)) return true;
    pgpu_board_store(&own->busy_since_ns, 0);
    if (is_any_in_flight(gpu, now_ns)) tell_neighbours(gpu, now_ns); /* it came before that store */
    return true;
}

void pgpu_in_flight_after_fork_in_child(void) {
    memset(entered, 0, sizeof(entered));
}
