#include "time/turn_account.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "driver/driver.h"

/* A process that was alive is tested again after this time at the earliest. */
#define TRUSTED_LIFE_NS 100000000u
#define SPINS           100u
#define PAUSE_NS        20000
#define LOOK_EACH       50u /* pauses */
/* About half a second: then the holder counts as stopped. Counted in pauses and not in time, since pauses
 * last longer on an overloaded machine. */
#define MOST_PAUSES 5000u
#define PAGES       4096u

struct account {
    uint32_t holder; /* 1 + the slot; 0: free */
    struct sim_turns turns;
} __attribute__((aligned(PAGES)));

/* As pgpu.gpu.simulated_activity reads it. */
_Static_assert(sizeof(struct account) == 94208, "");
_Static_assert(offsetof(struct account, turns.lost_ns) == 56, "");

static struct account *accounts;

bool sim_turn_account_start(const char *directory) {
    if (accounts != NULL) return true;
    size_t bytes = SIM_MAX_GPUS * sizeof(struct account);
    int fd = sim_shared_open(directory, "turns", bytes);
    if (fd < 0) return false;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) return false;
    accounts = at;
    /* An account that the slot's former owner held when it was killed is free. */
    for (unsigned gpu = 0; gpu < SIM_MAX_GPUS; gpu++)
        sim_turn_account_leave(gpu);
    return true;
}

static bool try_to_hold(uint32_t *holder, uint32_t from) {
    return __atomic_compare_exchange_n(holder, &from, sim_driver.slot + 1, false, __ATOMIC_ACQUIRE,
                                       __ATOMIC_RELAXED);
}

static bool is_gone(uint32_t holder, unsigned pauses) {
    if (holder == 0 || pauses % LOOK_EACH != 0) return false;
    return pauses >= MOST_PAUSES || !sim_device_slot_is_alive(holder - 1);
}

static void hold(uint32_t *holder) {
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    for (unsigned spin = 0; spin < SPINS; spin++)
        if (try_to_hold(holder, 0)) return;
    for (unsigned pauses = 1; !try_to_hold(holder, 0); pauses++) {
        uint32_t seen = __atomic_load_n(holder, __ATOMIC_RELAXED);
        if (is_gone(seen, pauses) && try_to_hold(holder, seen)) return;
        nanosleep(&pause, NULL);
    }
}

/* A test takes some system calls. Its result applies to all GPUs, whose clocks other threads hold. */
static bool is_alive(unsigned slot, uint64_t now_ns) {
    static uint64_t alive_until_ns[PGPU_MAX_SLOTS];
    if (slot == sim_driver.slot || __atomic_load_n(&alive_until_ns[slot], __ATOMIC_RELAXED) > now_ns)
        return true;
    if (!sim_device_slot_is_alive(slot)) return false;
    __atomic_store_n(&alive_until_ns[slot], now_ns + TRUSTED_LIFE_NS, __ATOMIC_RELAXED);
    return true;
}

static void drop_dead(struct sim_turns *turns, uint64_t now_ns) {
    for (unsigned at = 0; (at = sim_turns_next_busy(turns, at)) < SIM_RUNNERS; at++)
        if (!is_alive(at, now_ns)) sim_turns_need(turns, at, 0);
}

/* Saving one context's registers and shared memory and loading another's, at the speed of device memory. */
static uint64_t switch_ns(const struct sim_gpu *gpu) {
    double bytes = (double)gpu->sm_count * (double)(SIM_REGISTER_BYTES_PER_SM + gpu->shared_bytes_per_sm);
    double lost_ns = 2 * bytes * 1e9 / (double)gpu->bandwidth_bytes_per_second;
    double most_ns = (double)gpu->time_slice_ns / 2;
    return (uint64_t)(lost_ns < most_ns ? lost_ns : most_ns);
}

struct sim_turns *sim_turn_account_enter(unsigned gpu, uint64_t now_ns) {
    struct account *account = &accounts[gpu];
    const struct sim_gpu *facts = &sim_driver.config.gpu[gpu];
    hold(&account->holder);
    account->turns.switch_ns = switch_ns(facts);
    account->turns.keeps_windows = facts->keeps_windows;
    drop_dead(&account->turns, now_ns);
    sim_turns_advance(&account->turns, now_ns);
    return &account->turns;
}

void sim_turn_account_leave(unsigned gpu) {
    uint32_t own = sim_driver.slot + 1;
    __atomic_compare_exchange_n(&accounts[gpu].holder, &own, 0, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

const struct sim_turns *sim_turn_account_glance(unsigned gpu) {
    return &accounts[gpu].turns;
}
