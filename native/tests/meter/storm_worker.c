#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "storm.h"

struct storm_book *storm_book;
struct storm_worker *storm_self;

static struct pgpu_meter meter = PGPU_METER_INIT;
static uint64_t loops;

void pgpu_meter_reached(enum pgpu_meter_point point) {
    if (point == PGPU_POINT_OP_TOTAL_READ) loops++;
    if (storm_self == NULL || storm_self->arm == STORM_UNARMED || storm_self->point != point) return;
    if (--storm_self->point_countdown != 0) return;
    storm_book->reached[point]++;
    bool is_stop = storm_self->arm == STORM_STOP_AT_POINT;
    storm_self->arm = STORM_UNARMED;
    kill(getpid(), is_stop ? SIGSTOP : SIGKILL);
}

static unsigned choose(unsigned below) {
    return (unsigned)rand_r(&storm_self->seed) % below;
}

static uint64_t thread_cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static void raise_to(_Atomic uint64_t *largest, uint64_t value) {
    if (value > *largest) *largest = value;
}

static bool change(unsigned gpu, int64_t bytes) {
    if (bytes > 0)
        return pgpu_meter_reserve(&meter, gpu, (uint64_t)bytes, STORM_LIMIT, NULL) == PGPU_METER_OK;
    pgpu_meter_refund(&meter, gpu, (uint64_t)-bytes);
    return true;
}

static int64_t choose_change(unsigned gpu) {
    int64_t held_units = storm_self->expected_bytes[gpu] / (int64_t)STORM_UNIT;
    bool grows = held_units == 0 || choose(5) < 3;
    unsigned units = grows ? 1 + choose(16) : 1 + choose((unsigned)held_units);
    return (grows ? 1 : -1) * (int64_t)(units * STORM_UNIT);
}

static void operate(void) {
    unsigned gpu = choose(STORM_GPUS);
    int64_t bytes = choose_change(gpu);
    uint64_t loops_before = loops, cpu_before = thread_cpu_ns();
    storm_self->in_flight_bytes[gpu] = bytes;
    if (change(gpu, bytes)) storm_self->expected_bytes[gpu] += bytes;
    storm_self->in_flight_bytes[gpu] = 0;
    raise_to(&storm_self->largest_loops, loops - loops_before);
    raise_to(&storm_self->largest_cpu_ns, thread_cpu_ns() - cpu_before);
    if (pgpu_meter_total_bytes(&meter, gpu) > STORM_LIMIT) storm_book->over_limit++;
    storm_self->operations++;
}

/* A child that only holds what it inherited. Every second one skips the fork handlers, as clone does. */
static void fork_a_survivor(void) {
    bool skips_handlers = choose(2) == 0;
    storm_self->child_pid = STORM_FORKING;
    if (!skips_handlers) pgpu_meter_before_fork(&meter);
    pid_t child = skips_handlers ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (child == 0) {
        if (!skips_handlers) pgpu_meter_after_fork_in_child(&meter);
        /* It has no slot: every call is refused before it touches shared memory. */
        if (pgpu_meter_reserve(&meter, 0, STORM_UNIT, UINT64_MAX, NULL) != PGPU_METER_NOT_CLAIMED)
            storm_book->over_limit++;
        for (;;)
            pause();
    }
    if (!skips_handlers) pgpu_meter_after_fork_in_parent(&meter);
    storm_self->child_pid = child;
}

static void rest_while_paused(void) {
    while (storm_book->pauses) {
        storm_self->is_paused = true;
        struct timespec moment = {.tv_nsec = 200000};
        nanosleep(&moment, NULL);
    }
    storm_self->is_paused = false;
}

_Noreturn void storm_work(const char *usage_path, struct storm_worker *worker) {
    storm_self = worker;
    if (pgpu_meter_claim(&meter, usage_path, STORM_GPUS) != PGPU_METER_OK) _exit(3);
    for (uint64_t done = 0; worker->stop_after_operations == 0 || done < worker->stop_after_operations;
         done++) {
        rest_while_paused();
        operate();
        if (worker->forks && worker->child_pid == 0 && choose(200) == 0) fork_a_survivor();
    }
    worker->is_paused = true;
    for (;;)
        pause();
}

bool storm_reap(const char *usage_path) {
    storm_self = NULL;
    if (pgpu_meter_claim(&meter, usage_path, STORM_GPUS) != PGPU_METER_OK) return false;
    for (unsigned gpu = 0; gpu < STORM_GPUS; gpu++) {
        pgpu_meter_reap(&meter, gpu);
        storm_book->checked_bytes[gpu] = (int64_t)pgpu_meter_total_bytes(&meter, gpu);
    }
    return true;
}
