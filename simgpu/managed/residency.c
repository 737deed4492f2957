#include "managed/residency.h"

#include <unistd.h>

#include "driver/driver.h"

/* Work that misses everything still gets so far. */
#define SLOWEST 1e9

/* Of one GPU, in this process. What is fresh was never on any device: it is made there, and nothing moves. */
static struct {
    uint64_t total_bytes, fresh_bytes;
} own[SIM_MAX_GPUS];

static uint64_t load(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static void take(uint64_t *word, uint64_t bytes) {
    uint64_t seen = load(word);
    while (!__atomic_compare_exchange_n(word, &seen, seen > bytes ? seen - bytes : 0, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
    }
}

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static struct sim_activity_slot *slot_of(unsigned gpu, unsigned index) {
    return &sim_driver.activity->gpu[gpu].slot[index];
}

static uint64_t *own_resident(unsigned gpu) {
    return &slot_of(gpu, sim_driver.slot)->resident_bytes;
}

static unsigned slots_used(unsigned gpu) {
    return (unsigned)least(load(&sim_driver.activity->gpu[gpu].slots_used), PGPU_MAX_SLOTS);
}

/* Managed memory may be as large as the host's. */
CUresult sim_residency_add(unsigned gpu, uint64_t bytes) {
    uint64_t host_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (bytes > host_bytes || load(&own[gpu].total_bytes) > host_bytes - bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    __atomic_fetch_add(&own[gpu].total_bytes, bytes, __ATOMIC_RELAXED);
    __atomic_fetch_add(&own[gpu].fresh_bytes, bytes, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

/* What goes was resident, and fresh, in proportion. */
void sim_residency_remove(unsigned gpu, uint64_t bytes) {
    uint64_t total_bytes = load(&own[gpu].total_bytes);
    if (total_bytes == 0) return;
    double part = (double)bytes / (double)total_bytes;
    take(own_resident(gpu), (uint64_t)(part * (double)load(own_resident(gpu))));
    take(&own[gpu].fresh_bytes, (uint64_t)(part * (double)load(&own[gpu].fresh_bytes)));
    take(&own[gpu].total_bytes, bytes);
    if (load(&own[gpu].total_bytes) == 0) __atomic_store_n(own_resident(gpu), 0, __ATOMIC_RELAXED);
}

uint64_t sim_residency_total(unsigned gpu) {
    return load(&own[gpu].total_bytes);
}

/* A dead process's pages are gone. */
static uint64_t resident_of(unsigned gpu, unsigned index) {
    uint64_t *resident = &slot_of(gpu, index)->resident_bytes;
    if (load(resident) == 0 || index == sim_driver.slot) return load(resident);
    if (!sim_device_slot_is_alive(index)) __atomic_store_n(resident, 0, __ATOMIC_RELAXED);
    return load(resident);
}

uint64_t sim_residency_bytes(unsigned gpu) {
    uint64_t sum_bytes = 0;
    for (unsigned i = 0; i < slots_used(gpu); i++)
        sum_bytes += resident_of(gpu, i);
    return sum_bytes;
}

static uint64_t all_bytes(unsigned gpu) {
    uint64_t sum_bytes = sim_device_total_bytes(gpu);
    for (unsigned i = 0; i < slots_used(gpu); i++)
        sum_bytes += load(&slot_of(gpu, i)->resident_bytes);
    return sum_bytes;
}

static uint64_t room_bytes(unsigned gpu) {
    uint64_t held_bytes = all_bytes(gpu), memory_bytes = sim_driver.config.gpu[gpu].memory_bytes;
    return memory_bytes > held_bytes ? memory_bytes - held_bytes : 0;
}

/* The process with the least recently touched pages, with or without our own; PGPU_MAX_SLOTS: no process has
 * any. */
static unsigned oldest(unsigned gpu, bool may_be_own) {
    unsigned found = PGPU_MAX_SLOTS;
    uint64_t oldest_ns = UINT64_MAX;
    for (unsigned i = 0; i < slots_used(gpu); i++) {
        if ((i == sim_driver.slot && !may_be_own) || load(&slot_of(gpu, i)->resident_bytes) == 0) continue;
        uint64_t touched_ns = load(&slot_of(gpu, i)->touched_at_ns);
        if (touched_ns >= oldest_ns) continue;
        oldest_ns = touched_ns;
        found = i;
    }
    return found;
}

static void evict_from(unsigned gpu, unsigned victim, uint64_t bytes) {
    take(&slot_of(gpu, victim)->resident_bytes, least(resident_of(gpu, victim), bytes));
}

/* Evict other processes' pages to the host until so many bytes are free, or none are left. */
static void evict(unsigned gpu, uint64_t wanted_bytes) {
    for (unsigned tries = 0; tries < PGPU_MAX_SLOTS; tries++) {
        uint64_t free_bytes = room_bytes(gpu);
        unsigned victim = oldest(gpu, false);
        if (free_bytes >= wanted_bytes || victim == PGPU_MAX_SLOTS) return;
        evict_from(gpu, victim, wanted_bytes - free_bytes);
    }
}

void sim_residency_make_room(unsigned gpu) {
    uint64_t memory_bytes = sim_driver.config.gpu[gpu].memory_bytes;
    for (unsigned tries = 0; tries < PGPU_MAX_SLOTS; tries++) {
        uint64_t held_bytes = all_bytes(gpu);
        unsigned victim = held_bytes > memory_bytes ? oldest(gpu, true) : PGPU_MAX_SLOTS;
        if (victim == PGPU_MAX_SLOTS) return;
        evict_from(gpu, victim, held_bytes - memory_bytes);
    }
}

/* Let so many more bytes be resident, as far as the device is large enough; return how many are. */
static uint64_t page_in(unsigned gpu, uint64_t bytes) {
    uint64_t free_bytes = room_bytes(gpu);
    __atomic_store_n(&slot_of(gpu, sim_driver.slot)->touched_at_ns, sim_now_ns(), __ATOMIC_RELAXED);
    if (free_bytes < bytes) {
        sim_device_reap(gpu);
        evict(gpu, bytes);
        free_bytes = room_bytes(gpu);
    }
    uint64_t brought_bytes = least(bytes, free_bytes);
    __atomic_fetch_add(own_resident(gpu), brought_bytes, __ATOMIC_RELAXED);
    return brought_bytes;
}

/* Of bytes that are not resident, the part that lies on the host. */
static double on_host(unsigned gpu) {
    uint64_t resident_bytes = load(own_resident(gpu)), total_bytes = load(&own[gpu].total_bytes);
    if (total_bytes <= resident_bytes) return 1;
    double fresh = (double)load(&own[gpu].fresh_bytes) / (double)(total_bytes - resident_bytes);
    return fresh < 1 ? 1 - fresh : 0;
}

/* The part of what the work touches that is not resident, 0..1. */
static double missing(unsigned gpu, const struct sim_demand *mean) {
    double resident_bytes = (double)load(own_resident(gpu));
    return resident_bytes >= mean->managed_set_bytes ? 0 : 1 - resident_bytes / mean->managed_set_bytes;
}

double sim_residency_speed(unsigned gpu, const struct sim_demand *mean) {
    if (mean->managed_bytes <= 0) return 1;
    const struct sim_gpu *facts = &sim_driver.config.gpu[gpu];
    double faulted_bytes = mean->managed_bytes * missing(gpu, mean);
    if (faulted_bytes <= 0) return 1;
    double in_ns = faulted_bytes * on_host(gpu) * 1e9 / (double)facts->fault_bytes_per_second;
    bool is_full = room_bytes(gpu) < (uint64_t)faulted_bytes;
    double out_ns = is_full ? faulted_bytes * 1e9 / (double)facts->pcie_bytes_per_second : 0;
    return in_ns + out_ns < SLOWEST ? 1 / (1 + in_ns + out_ns) : 1 / SLOWEST;
}

void sim_residency_touch(unsigned gpu, const struct sim_demand *mean, uint64_t done_ns) {
    if (mean->managed_bytes <= 0) return;
    double faulted_bytes = mean->managed_bytes * missing(gpu, mean) * (double)done_ns;
    double most_bytes = mean->managed_set_bytes * missing(gpu, mean);
    double fresh = 1 - on_host(gpu);
    uint64_t brought_bytes =
        page_in(gpu, (uint64_t)(faulted_bytes < most_bytes ? faulted_bytes : most_bytes));
    take(&own[gpu].fresh_bytes, (uint64_t)((double)brought_bytes * fresh) + 1);
}

uint64_t sim_residency_move_in(unsigned gpu, uint64_t bytes) {
    uint64_t total_bytes = load(&own[gpu].total_bytes), resident_bytes = load(own_resident(gpu));
    if (total_bytes <= resident_bytes) return 0;
    /* The same part of this span is missing as of all. */
    double part = (double)(total_bytes - resident_bytes) / (double)total_bytes, host = on_host(gpu);
    uint64_t free_bytes = room_bytes(gpu), brought_bytes = page_in(gpu, (uint64_t)((double)bytes * part));
    uint64_t evicted_bytes = brought_bytes > free_bytes ? brought_bytes - free_bytes : 0;
    take(&own[gpu].fresh_bytes, (uint64_t)((double)brought_bytes * (1 - host)));
    return (uint64_t)((double)brought_bytes * host) + evicted_bytes;
}

uint64_t sim_residency_move_out(unsigned gpu, uint64_t bytes) {
    uint64_t total_bytes = load(&own[gpu].total_bytes), resident_bytes = load(own_resident(gpu));
    if (total_bytes == 0) return 0;
    uint64_t moved_bytes = (uint64_t)((double)bytes * (double)resident_bytes / (double)total_bytes);
    take(own_resident(gpu), moved_bytes);
    return moved_bytes;
}
