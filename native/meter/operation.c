#include "operation.h"

#include <time.h>

#include "fault_points.h"
#include "swap16.h"

static uint64_t load(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

/* Release is enough: the compare-and-swap that follows is a full barrier, and the process that gets a killed
 * process's lock sees its retired stores. */
static void store(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static void raise_to(uint64_t *word, uint64_t value) {
    uint64_t seen = load(word);
    while (seen < value &&
           !__atomic_compare_exchange_n(word, &seen, value, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
}

static uint64_t make_tag(unsigned slot, uint64_t seq) {
    return ((uint64_t)slot << PGPU_TAG_SEQ_BITS) | (seq & PGPU_TAG_SEQ_MASK);
}

/* Before a tag is overwritten its slot must be able to learn that its operation was applied. A slot's own
 * older operations are settled already, so their tag may go. A forged tag may name a slot that does not
 * exist. */
static void acknowledge(struct pgpu_usage *usage, unsigned own_slot, unsigned gpu, uint64_t tag) {
#ifndef PGPU_METER_CONTROL_WITHOUT_DONE
    unsigned slot = (unsigned)(tag >> PGPU_TAG_SEQ_BITS);
    if (slot == own_slot || slot >= PGPU_MAX_SLOTS) return;
    raise_to(&usage->slot[slot].gpu[gpu].done, tag & PGPU_TAG_SEQ_MASK);
#else
    (void)usage, (void)own_slot, (void)gpu, (void)tag;
#endif
}

static bool would_pass(uint64_t total_bytes, int64_t delta_bytes, uint64_t limit_bytes) {
    if (delta_bytes <= 0) return false;
    return (uint64_t)delta_bytes > limit_bytes || total_bytes > limit_bytes - (uint64_t)delta_bytes;
}

static bool change_total(struct pgpu_usage *usage, unsigned slot, unsigned gpu, int64_t delta_bytes,
                         uint64_t seq, uint64_t limit_bytes) {
    struct pgpu_usage_gpu *shared = &usage->gpu[gpu];
    for (;;) {
        /* Two loads: a pair that never was makes the swap fail, and each word alone was true a moment ago. */
        struct pgpu_pair seen = {.low = load(&shared->total_bytes), .high = load(&shared->tag)};
        PGPU_POINT(OP_TOTAL_READ);
        acknowledge(usage, slot, gpu, seen.high);
        PGPU_POINT(OP_DONE_RAISED);
        if (would_pass(seen.low, delta_bytes, limit_bytes)) return false;
        struct pgpu_pair next = {.low = seen.low + (uint64_t)delta_bytes, .high = make_tag(slot, seq)};
        if (pgpu_swap16(shared, seen, next)) {
            PGPU_POINT(OP_TOTAL_CHANGED);
            if (delta_bytes > 0) raise_to(&shared->peak_bytes, next.low);
            return true;
        }
    }
}

/* Doing it twice gives the same result, so a death in the middle is harmless. */
static void settle(struct pgpu_usage_entry *entry, uint64_t seq, bool is_applied) {
    uint64_t before_bytes = load(&entry->used_bytes[(seq - 1) & 1]);
    uint64_t delta_bytes = is_applied ? load(&entry->delta_bytes) : 0;
    store(&entry->used_bytes[seq & 1], before_bytes + delta_bytes);
    PGPU_POINT(OP_USED_WRITTEN);
    store(&entry->settled, seq);
    PGPU_POINT(OP_SETTLED);
}

bool pgpu_meter_operate(struct pgpu_usage *usage, unsigned slot, unsigned gpu, int64_t delta_bytes,
                        uint64_t limit_bytes) {
    struct pgpu_usage_entry *entry = &usage->slot[slot].gpu[gpu];
    uint64_t seq = load(&entry->settled) + 1;
    PGPU_POINT(OP_BEGUN);
    store(&entry->delta_bytes, (uint64_t)delta_bytes);
    PGPU_POINT(OP_DELTA_WRITTEN);
    store(&entry->seq, seq);
    PGPU_POINT(OP_SEQ_WRITTEN);
    bool is_applied = change_total(usage, slot, gpu, delta_bytes, seq, limit_bytes);
    if (!is_applied) PGPU_POINT(OP_REFUSED);
    settle(entry, seq, is_applied);
    return is_applied;
}

uint64_t pgpu_meter_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

void pgpu_meter_note_refusal(struct pgpu_usage *usage, unsigned gpu, uint64_t bytes) {
    struct pgpu_usage_gpu *shared = &usage->gpu[gpu];
    uint64_t total_bytes = load(&shared->total_bytes);
    raise_to(&shared->attempted_bytes, bytes > UINT64_MAX - total_bytes ? UINT64_MAX : total_bytes + bytes);
    __atomic_fetch_add(&shared->refusals, 1, __ATOMIC_RELAXED);
}

void pgpu_meter_note_reap(struct pgpu_usage *usage, unsigned gpu) {
    __atomic_store_n(&usage->gpu[gpu].reaped_ns, pgpu_meter_now_ns(), __ATOMIC_SEQ_CST);
}

/* The total is read before `done`: the process that overwrote our tag raised `done` first. */
static bool was_applied(const struct pgpu_usage *usage, unsigned slot, unsigned gpu, uint64_t seq) {
    uint64_t tag = load(&usage->gpu[gpu].tag);
    return tag == make_tag(slot, seq) || load(&usage->slot[slot].gpu[gpu].done) >= seq;
}

void pgpu_meter_recover(struct pgpu_usage *usage, unsigned slot, unsigned gpu) {
    struct pgpu_usage_entry *entry = &usage->slot[slot].gpu[gpu];
    PGPU_POINT(RECOVER_BEGUN);
    uint64_t seq = load(&entry->seq);
    if (seq != load(&entry->settled)) {
        bool is_applied = was_applied(usage, slot, gpu, seq);
        PGPU_POINT(RECOVER_DECIDED);
        settle(entry, seq, is_applied);
        PGPU_POINT(RECOVER_SETTLED);
    }
    uint64_t left_bytes = pgpu_meter_entry_bytes(entry);
    if (left_bytes != 0) pgpu_meter_operate(usage, slot, gpu, -(int64_t)left_bytes, UINT64_MAX);
    PGPU_POINT(RECOVER_REFUNDED);
}

uint64_t pgpu_meter_entry_bytes(const struct pgpu_usage_entry *entry) {
    return load(&entry->used_bytes[load(&entry->settled) & 1]);
}

bool pgpu_meter_entry_is_empty(const struct pgpu_usage_entry *entry) {
    return load(&entry->seq) == load(&entry->settled) && pgpu_meter_entry_bytes(entry) == 0;
}
