/* Device time, shared by all processes. Every word has one writer, except samples, which any process may
 * take. */
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "state/state.h"

uint64_t sim_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct sim_activity *sim_activity_map(const char *directory) {
    int fd = sim_shared_open(directory, "activity", sizeof(struct sim_activity));
    if (fd < 0) return NULL;
    void *at = mmap(NULL, sizeof(struct sim_activity), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return at == MAP_FAILED ? NULL : at;
}

static uint64_t load(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static void store(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static void raise_to(uint64_t *word, uint64_t value) {
    uint64_t seen = load(word);
    while (seen < value &&
           !__atomic_compare_exchange_n(word, &seen, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

void sim_activity_take_slot(struct sim_activity_gpu *activity, unsigned index, uint64_t server,
                            uint64_t now_ns) {
    struct sim_activity_slot *slot = &activity->slot[index];
    __atomic_fetch_add(&activity->retired_ns, load(&slot->busy_ns), __ATOMIC_RELAXED);
    store(&slot->until_ns, 0);
    store(&slot->pending_ns, 0);
    store(&slot->pending_busy_ns, 0);
    store(&slot->consumed_ns, 0);
    store(&slot->busy_ns, 0);
    store(&slot->resident_bytes, 0);
    store(&slot->server, server);
    store(&slot->updated_ns, now_ns);
    raise_to(&activity->slots_used, index + 1u);
}

/* The part of its expected work that a slot's owner has done since it last wrote, 0..1. */
static double progress(const struct sim_activity_slot *slot, uint64_t now_ns) {
    uint64_t updated_ns = load(&slot->updated_ns), until_ns = load(&slot->until_ns);
    if (until_ns <= updated_ns || now_ns <= updated_ns) return 0;
    return now_ns >= until_ns ? 1 : (double)(now_ns - updated_ns) / (double)(until_ns - updated_ns);
}

uint64_t sim_activity_used_ns(const struct sim_activity_slot *slot, uint64_t now_ns) {
    return load(&slot->consumed_ns) + (uint64_t)((double)load(&slot->pending_ns) * progress(slot, now_ns));
}

uint64_t sim_activity_slot_busy_ns(const struct sim_activity_slot *slot, uint64_t now_ns) {
    double pending_ns = (double)load(&slot->pending_busy_ns);
    return load(&slot->busy_ns) + (uint64_t)(pending_ns * progress(slot, now_ns));
}

uint64_t sim_activity_busy_ns(const struct sim_activity_gpu *activity, uint64_t now_ns) {
    uint64_t sum_ns = load(&activity->retired_ns), slots = load(&activity->slots_used);
    for (uint64_t i = 0; i < slots && i < PGPU_MAX_SLOTS; i++)
        if (load(&activity->slot[i].updated_ns) != 0)
            sum_ns += sim_activity_slot_busy_ns(&activity->slot[i], now_ns);
    return sum_ns;
}

/* What a slot's owner wrote, and what its queue has used since. */
static void add_usage(struct sim_usage *sum, const struct sim_activity_slot *slot, uint64_t now_ns) {
    double done = progress(slot, now_ns), work_ns = done * (double)load(&slot->pending_ns);
    double real_ns = done * (double)load(&slot->pending_busy_ns);
    sum->sms_ns += slot->usage.sms_ns + slot->demand.sm_share * real_ns;
    sum->slots_ns += slot->usage.slots_ns + slot->demand.slots * real_ns;
    sum->dram_ns += slot->usage.dram_ns + slot->dram_share * work_ns;
    sum->fp32_ns += slot->usage.fp32_ns + slot->demand.fp32_ns * work_ns;
}

struct sim_usage sim_activity_usage(const struct sim_activity_gpu *activity, uint64_t now_ns) {
    struct sim_usage sum = {0};
    uint64_t slots = load(&activity->slots_used);
    for (uint64_t i = 0; i < slots && i < PGPU_MAX_SLOTS; i++)
        add_usage(&sum, &activity->slot[i], now_ns);
    return sum;
}

void sim_activity_sample(struct sim_activity_gpu *activity, uint64_t now_ns) {
    uint64_t count = load(&activity->sample_count);
    unsigned last = (unsigned)((count + SIM_SAMPLES - 1) % SIM_SAMPLES),
             next = (unsigned)(count % SIM_SAMPLES);
    if (count > 0 && now_ns < load(&activity->sample_at_ns[last]) + SIM_SAMPLE_PERIOD_NS) return;
    /* The caller that raises the count owns the sample. */
    if (!__atomic_compare_exchange_n(&activity->sample_count, &count, count + 1, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
        return;
    __atomic_store_n(&activity->sample_at_ns[next], now_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&activity->sample_busy_ns[next], sim_activity_busy_ns(activity, now_ns),
                     __ATOMIC_RELAXED);
}

/* The youngest sample that is at least a second old, else the oldest there is. */
static unsigned sample_before(const struct sim_activity_gpu *activity, uint64_t count, uint64_t now_ns) {
    unsigned kept = (unsigned)(count < SIM_SAMPLES ? count : SIM_SAMPLES), index = 0;
    for (unsigned back = 1; back <= kept; back++) {
        index = (unsigned)((count - back) % SIM_SAMPLES);
        if (load(&activity->sample_at_ns[index]) + 1000000000u <= now_ns) break;
    }
    return index;
}

unsigned sim_activity_busy_percent(const struct sim_activity_gpu *activity, uint64_t now_ns) {
    uint64_t count = load(&activity->sample_count);
    if (count == 0) return 0;
    unsigned index = sample_before(activity, count, now_ns);
    uint64_t at_ns = load(&activity->sample_at_ns[index]), then_ns = load(&activity->sample_busy_ns[index]);
    uint64_t busy_ns = sim_activity_busy_ns(activity, now_ns);
    if (now_ns <= at_ns || busy_ns <= then_ns) return 0;
    uint64_t percent = (busy_ns - then_ns) * 100 / (now_ns - at_ns);
    return percent > 100 ? 100 : (unsigned)percent;
}
