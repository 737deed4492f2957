/* The limited control groups that this process is in, each with a slot in its usage file. */
#include <pthread.h>
#include <stdio.h>

#include "state/group_limits.h"

/* Limits may be nested; a process is seldom in more than one. */
#define MOST_JOINED 4

struct joined {
    unsigned row;
    struct pgpu_meter meter;
};

static struct {
    struct sim_group_limits *limits; /* NULL: nothing is limited here */
    char directory[SIM_PATH_BYTES];
    struct pgpu_meter *own;
    unsigned gpu_count;
    uint64_t seen; /* generation */
    unsigned count;
    struct joined joined[MOST_JOINED];
    pthread_mutex_t mutex;
} groups = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static uint64_t generation(void) {
    return __atomic_load_n(&groups.limits->generation, __ATOMIC_ACQUIRE);
}

static uint64_t limit_bytes(unsigned row, unsigned gpu) {
    return __atomic_load_n(&groups.limits->group[row].hard_bytes[gpu], __ATOMIC_RELAXED);
}

static bool is_joined(unsigned row) {
    for (unsigned i = 0; i < groups.count; i++)
        if (groups.joined[i].row == row) return true;
    return false;
}

/* What the process holds already counts too, whatever the limit. */
static void join(unsigned row) {
    char path[SIM_PATH_BYTES];
    if (is_joined(row) || groups.count == MOST_JOINED) return;
    struct joined *joined = &groups.joined[groups.count];
    *joined = (struct joined){.row = row, .meter = PGPU_METER_INIT};
    if (!sim_group_limits_usage_path(groups.directory, row, path)) return;
    if (pgpu_meter_claim(&joined->meter, path, groups.gpu_count) != PGPU_METER_OK) return;
    for (unsigned gpu = 0; gpu < groups.gpu_count; gpu++) {
        uint64_t own_bytes = pgpu_meter_own_bytes(groups.own, gpu);
        if (own_bytes > 0) pgpu_meter_reserve(&joined->meter, gpu, own_bytes, SIM_NO_LIMIT, NULL);
    }
    __atomic_store_n(&groups.count, groups.count + 1, __ATOMIC_RELEASE);
}

/* A limit holds from the first reservation after it was set. */
static void refresh(void) {
    unsigned rows[SIM_LIMITED_GROUPS];
    pthread_mutex_lock(&groups.mutex);
    uint64_t now = generation();
    if (now != groups.seen) {
        unsigned count = sim_group_limits_of_process(groups.limits, rows);
        for (unsigned i = 0; i < count; i++)
            join(rows[i]);
        __atomic_store_n(&groups.seen, now, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&groups.mutex);
}

void sim_groups_begin(const char *directory, struct pgpu_meter *own, unsigned gpu_count) {
    if (groups.limits != NULL ||
        (size_t)snprintf(groups.directory, SIM_PATH_BYTES, "%s", directory) >= SIM_PATH_BYTES)
        return;
    groups.own = own;
    groups.gpu_count = gpu_count;
    groups.limits = sim_group_limits_map(directory);
}

static void refund_first(unsigned count, unsigned gpu, uint64_t bytes) {
    for (unsigned i = 0; i < count; i++)
        pgpu_meter_refund(&groups.joined[i].meter, gpu, bytes);
}

bool sim_groups_reserve(unsigned gpu, uint64_t bytes) {
    if (groups.limits == NULL) return true;
    if (generation() != __atomic_load_n(&groups.seen, __ATOMIC_ACQUIRE)) refresh();
    unsigned count = __atomic_load_n(&groups.count, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < count; i++) {
        struct joined *joined = &groups.joined[i];
        uint64_t most_bytes = limit_bytes(joined->row, gpu);
        if (pgpu_meter_reserve(&joined->meter, gpu, bytes, most_bytes, NULL) == PGPU_METER_OK) continue;
        refund_first(i, gpu, bytes);
        return false;
    }
    return true;
}

void sim_groups_refund(unsigned gpu, uint64_t bytes) {
    refund_first(__atomic_load_n(&groups.count, __ATOMIC_ACQUIRE), gpu, bytes);
}
