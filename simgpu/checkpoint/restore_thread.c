/* The thread in every process that carries out checkpoints, as NVIDIA's driver has one. It sleeps until there
 * is a request.
 *
 * Device memory is this process's own memory all the time, so a checkpoint moves nothing: it gives back what
 * is counted on each device, contexts included, and takes as long as the copy would. */
#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include "checkpoint/checkpoint.h"
#include "driver/call_gate.h"
#include "lock.h"
#include "mps/mps.h"
#include "memory/range.h"
#include "managed/residency.h"
#include "stream/stream.h"
#include "state/futex.h"

#define LOOK_NS     200000
#define STACK_BYTES (256u << 10)

static struct {
    struct sim_checkpoint_slot *slot;
    bool has_shared; /* memory with another process, at any time */
    uint64_t saved_bytes[SIM_MAX_GPUS];
} own;

void sim_checkpoint_refuse_shared(void) {
    __atomic_store_n(&own.has_shared, true, __ATOMIC_RELAXED);
}

static void rest(uint64_t ns) {
    struct timespec pause = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    nanosleep(&pause, NULL);
}

static uint32_t askers_now(void) {
    return __atomic_load_n(&own.slot->askers, __ATOMIC_SEQ_CST);
}

static bool is_requester_alive(uint32_t asker) {
    struct sim_checkpoints *checkpoints;
    if (askers_now() != asker) return false;
    int fd = sim_checkpoints_open(sim_driver.directory, &checkpoints);
    if (fd < 0) return true;
    bool is_alive = pgpu_is_locked(fd, PGPU_LOCK_ALIVE + sim_driver.slot);
    munmap(checkpoints, sizeof(*checkpoints));
    close(fd);
    return is_alive;
}

static bool is_anything_queued(void) {
    for (uint32_t i = 0; i < sim_streams.used; i++) {
        CUstream stream = sim_at(&sim_streams, i);
        if (stream != NULL && !sim_stream_is_done(stream)) return true;
    }
    return false;
}

static bool is_quiet(void) {
    if (sim_gate_is_busy()) return false;
    SIM_LOCKED();
    return !is_anything_queued();
}

/* Calls that are under way and work that was queued come to their end; others wait at the gate. */
static CUresult lock(unsigned timeout_ms) {
    uint64_t until_ns = sim_now_ns() + timeout_ms * 1000000ull;
    uint32_t asker = askers_now();
    sim_gate_close();
    while (!is_quiet()) {
        bool is_late = timeout_ms != 0 && sim_now_ns() >= until_ns;
        if (is_late || !is_requester_alive(asker)) {
            sim_gate_open();
            return CUDA_ERROR_NOT_READY;
        }
        rest(LOOK_NS);
    }
    return CUDA_SUCCESS;
}

static bool has_managed_memory(void) {
    SIM_LOCKED();
    for (struct sim_range *range = sim_range_after(&sim_ranges, 0); range != NULL;
         range = sim_range_after(&sim_ranges, range->start + 1))
        if (sim_is_managed(range)) return true;
    return false;
}

static void copy_time(unsigned gpu, uint64_t bytes) {
    uint64_t bytes_per_second = sim_driver.config.gpu[gpu].pcie_bytes_per_second;
    if (!sim_driver.has_backing || bytes_per_second == 0) return;
    rest((uint64_t)((double)bytes * 1e9 / (double)bytes_per_second));
}

static CUresult save(void) {
    if (has_managed_memory() || __atomic_load_n(&own.has_shared, __ATOMIC_RELAXED) || sim_mps.server != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    for (unsigned gpu = 0; gpu < sim_driver.config.device_count; gpu++) {
        own.saved_bytes[gpu] = sim_device_own_bytes(gpu);
        copy_time(gpu, own.saved_bytes[gpu]);
        sim_device_refund(gpu, own.saved_bytes[gpu]);
    }
    return CUDA_SUCCESS;
}

/* All of it, or nothing. */
static CUresult take_again(void) {
    for (unsigned gpu = 0; gpu < sim_driver.config.device_count; gpu++) {
        if (sim_device_reserve(gpu, own.saved_bytes[gpu]) == CUDA_SUCCESS) continue;
        while (gpu-- > 0)
            sim_device_refund(gpu, own.saved_bytes[gpu]);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

static CUresult restore(void) {
    SIM_TRY(take_again());
    for (unsigned gpu = 0; gpu < sim_driver.config.device_count; gpu++)
        copy_time(gpu, own.saved_bytes[gpu]);
    return CUDA_SUCCESS;
}

static CUresult unlock(void) {
    sim_gate_open();
    return CUDA_SUCCESS;
}

static CUresult carry_out(const struct sim_checkpoint_slot *slot) {
    switch (slot->operation) {
    case SIM_CHECKPOINT_LOCK:
        return lock(slot->timeout_ms);
    case SIM_CHECKPOINT_SAVE:
        return save();
    case SIM_CHECKPOINT_RESTORE:
        return restore();
    default:
        return unlock();
    }
}

struct step {
    CUprocessState from, to;
};

static const struct step steps[] = {
    [SIM_CHECKPOINT_LOCK] = {CU_PROCESS_STATE_RUNNING, CU_PROCESS_STATE_LOCKED},
    [SIM_CHECKPOINT_SAVE] = {CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTED},
    [SIM_CHECKPOINT_RESTORE] = {CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_LOCKED},
    [SIM_CHECKPOINT_UNLOCK] = {CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING},
};

/* The file is writable by all users, so its values are checked against the table's bounds. */
static CUresult take_step(struct sim_checkpoint_slot *slot) {
    if (slot->operation < SIM_CHECKPOINT_LOCK || slot->operation > SIM_CHECKPOINT_UNLOCK)
        return CUDA_ERROR_INVALID_VALUE;
    struct step step = steps[slot->operation];
    if (slot->state != (uint32_t)step.from) return CUDA_ERROR_ILLEGAL_STATE;
    CUresult result = carry_out(slot);
    if (result == CUDA_SUCCESS) __atomic_store_n(&slot->state, (uint32_t)step.to, __ATOMIC_SEQ_CST);
    return result;
}

static void *serve(void *unused) {
    struct sim_checkpoint_slot *slot = own.slot;
    uint32_t served = __atomic_load_n(&slot->answer, __ATOMIC_SEQ_CST);
    __atomic_store_n(&slot->thread_id, (uint32_t)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    for (;;) {
        sim_wait_while(&slot->request, served, SIM_WAIT_FOREVER);
        uint32_t request = __atomic_load_n(&slot->request, __ATOMIC_SEQ_CST);
        if (request == served) continue;
        slot->result = take_step(slot);
        served = request;
        __atomic_store_n(&slot->answer, served, __ATOMIC_SEQ_CST);
        sim_wait_end(&slot->answer);
    }
    return unused;
}

static bool start_thread(void) {
    pthread_t thread;
    pthread_attr_t detached;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&detached, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the program's signals are none of this thread's */
    bool is_started = pthread_create(&thread, &detached, serve, NULL) == 0;
    if (is_started) pthread_setname_np(thread, "cuda-restore");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    return is_started;
}

/* A program without a dynamic linker has a C library of its own, beside which ours can start no thread. */
static bool may_have_threads(void) {
    uint64_t pair[2];
    int fd = open("/proc/self/auxv", O_RDONLY | O_CLOEXEC);
    bool is_linked = false;
    while (fd >= 0 && read(fd, pair, sizeof(pair)) == (ssize_t)sizeof(pair) && pair[0] != AT_NULL)
        is_linked |= pair[0] == AT_BASE && pair[1] != 0;
    if (fd >= 0) close(fd);
    return is_linked;
}

int sim_checkpoints_open(const char *directory, struct sim_checkpoints **checkpoints) {
    int fd = sim_shared_open(directory, "checkpoints", sizeof(**checkpoints));
    if (fd < 0) return -1;
    *checkpoints = mmap(NULL, sizeof(**checkpoints), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (*checkpoints != MAP_FAILED) return fd;
    close(fd);
    return -1;
}

void sim_restore_thread_start(void) {
    struct sim_checkpoints *checkpoints;
    if (!may_have_threads()) return;
    int fd = sim_checkpoints_open(sim_driver.directory, &checkpoints);
    if (fd < 0) return;
    close(fd);
    own.slot = &checkpoints->slot[sim_driver.slot];
    __atomic_store_n(&own.slot->owner, 0, __ATOMIC_SEQ_CST); /* of the slot's former owner */
    own.slot->state = CU_PROCESS_STATE_RUNNING;
    own.slot->thread_id = 0;
    own.slot->answer = __atomic_load_n(&own.slot->request, __ATOMIC_SEQ_CST);
    if (start_thread())
        __atomic_store_n(&own.slot->owner, sim_device_slot_owner(sim_driver.slot), __ATOMIC_SEQ_CST);
    else
        sim_log("this process cannot be checkpointed");
}
