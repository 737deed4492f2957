/* Taking a slot: A(i) through a mapping that dies with the address space, B(i) through a descriptor that
 * children inherit. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cancellation.h"
#include "identity.h"
#include "lock.h"
#include "meter.h"
#include "operation.h"
#include "fault_points.h"
#include "version.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

/* Where B's descriptor is moved to, out of the way of programs that expect the lowest numbers. */
#define QUIET_DESCRIPTOR 500

static int open_usage(const char *path) {
    return open(path, O_RDWR | O_CLOEXEC | O_NOCTTY);
}

static bool grow(int fd) {
    off_t size_bytes = lseek(fd, 0, SEEK_END);
    if (size_bytes < 0) return false;
    return size_bytes >= (off_t)sizeof(struct pgpu_usage) || ftruncate(fd, sizeof(struct pgpu_usage)) == 0;
}

static struct pgpu_usage *map(int fd) {
    void *at = mmap(NULL, sizeof(struct pgpu_usage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return NULL;
    /* A child that kept the mapping would keep A(i) too. */
    if (madvise(at, sizeof(struct pgpu_usage), MADV_DONTFORK) == 0) return at;
    munmap(at, sizeof(struct pgpu_usage));
    return NULL;
}

static enum pgpu_meter_status check_header(struct pgpu_usage *usage) {
    uint64_t magic = 0;
    __atomic_compare_exchange_n(&usage->magic, &magic, PGPU_USAGE_MAGIC, false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    if (magic != 0 && magic != PGPU_USAGE_MAGIC) return PGPU_METER_GARBLED;
    uint32_t abi = 0;
    __atomic_compare_exchange_n(&usage->abi, &abi, PGPU_METER_ABI, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return abi == 0 ? PGPU_METER_OK : pgpu_version_check(abi);
}

static void touch(struct pgpu_usage *usage, unsigned slot) {
    uint32_t seen = __atomic_load_n(&usage->slots_touched, __ATOMIC_SEQ_CST);
    while (seen <= slot && !__atomic_compare_exchange_n(&usage->slots_touched, &seen, slot + 1, true,
                                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
}

static bool try_slot(int alive_fd, int holding_fd, unsigned slot) {
    if (!pgpu_try_lock(alive_fd, PGPU_LOCK_ALIVE + slot)) return false;
    PGPU_POINT(CLAIM_ALIVE_LOCKED);
    if (pgpu_try_lock(holding_fd, PGPU_LOCK_HOLDING + slot)) return true;
    pgpu_unlock(alive_fd, PGPU_LOCK_ALIVE + slot);
    return false;
}

static unsigned take_slot(int alive_fd, int holding_fd) {
    unsigned slot = 0;
    while (slot < PGPU_MAX_SLOTS && !try_slot(alive_fd, holding_fd, slot))
        slot++;
    return slot;
}

static bool is_seen_by_others(const char *path, unsigned slot) {
    int fd = open_usage(path);
    if (fd < 0) return false;
    bool is_seen = pgpu_is_locked(fd, PGPU_LOCK_ALIVE + slot) && pgpu_is_locked(fd, PGPU_LOCK_HOLDING + slot);
    close(fd);
    return is_seen;
}

static void move_in(struct pgpu_usage *usage, unsigned slot) {
    /* First of all, so that no reaper overlooks the slot. */
    touch(usage, slot);
    for (unsigned gpu = 0; gpu < PGPU_MAX_GPUS; gpu++) {
        if (!pgpu_meter_entry_is_empty(&usage->slot[slot].gpu[gpu])) pgpu_meter_note_reap(usage, gpu);
        pgpu_meter_recover(usage, slot, gpu);
    }
    PGPU_POINT(CLAIM_RECOVERED);
    /* The slot's former owner is dead, and so is its work. */
    __atomic_store_n(&usage->slot[slot].stays, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&usage->slot[slot].sizes_itself, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&usage->slot[slot].in_flight_until_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&usage->slot[slot].in_flight, 0, __ATOMIC_RELEASE);
    pgpu_meter_sign(&usage->slot[slot]);
    PGPU_POINT(CLAIM_NAMED);
}

static uint32_t *make_same_process_page(void) {
    uint32_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return NULL;
    /* Linux 4.14 and newer; before it, only forks that run the atfork handlers are noticed. */
    madvise(page, 4096, MADV_WIPEONFORK);
    *page = 1;
    return page;
}

static int move_out_of_the_way(int fd) {
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, QUIET_DESCRIPTOR);
    if (moved < 0) return fd;
    close(fd);
    return moved;
}

static enum pgpu_meter_status claim_mapped(struct pgpu_meter *meter, struct pgpu_usage *usage, int alive_fd,
                                           int holding_fd) {
    enum pgpu_meter_status status = check_header(usage);
    if (status != PGPU_METER_OK) return status;
    PGPU_POINT(CLAIM_MAPPED);
    unsigned slot = take_slot(alive_fd, holding_fd);
    if (slot == PGPU_MAX_SLOTS) return PGPU_METER_FULL;
    PGPU_POINT(CLAIM_BOTH_LOCKED);
    move_in(usage, slot);
    meter->slot = slot;
    return PGPU_METER_OK;
}

/* `alive_fd` is closed on every path: the mapping alone keeps A(i). `holding_fd` stays open for good. */
static enum pgpu_meter_status claim_opened(struct pgpu_meter *meter, int alive_fd, int holding_fd) {
    struct pgpu_usage *usage = grow(alive_fd) ? map(alive_fd) : NULL;
    enum pgpu_meter_status status = PGPU_METER_UNREADABLE;
    if (usage != NULL) status = claim_mapped(meter, usage, alive_fd, holding_fd);
    close(alive_fd);
    if (status == PGPU_METER_OK && !is_seen_by_others(meter->path, meter->slot))
        status = PGPU_METER_LOCKS_LOST;
    if (status == PGPU_METER_OK) {
        move_out_of_the_way(holding_fd);
        __atomic_store_n(&meter->usage, usage, __ATOMIC_RELEASE);
        return PGPU_METER_OK;
    }
    if (usage != NULL) munmap(usage, sizeof(struct pgpu_usage));
    close(holding_fd);
    return status;
}

static enum pgpu_meter_status claim(struct pgpu_meter *meter) {
    if (meter->same_process == NULL) meter->same_process = make_same_process_page();
    if (meter->same_process == NULL) return PGPU_METER_UNREADABLE;
    *meter->same_process = 1;
    int alive_fd = open_usage(meter->path);
    if (alive_fd < 0) return PGPU_METER_UNREADABLE;
    int holding_fd = open_usage(meter->path);
    if (holding_fd >= 0) return claim_opened(meter, alive_fd, holding_fd);
    close(alive_fd);
    return PGPU_METER_UNREADABLE;
}

enum pgpu_meter_status pgpu_meter_claim(struct pgpu_meter *meter, const char *path, unsigned gpu_count) {
    if (strlen(path) >= sizeof(meter->path) || gpu_count == 0 || gpu_count > PGPU_MAX_GPUS)
        return PGPU_METER_GARBLED;
    pgpu_meter_forget_if_forked(meter);
    int before = pgpu_lock_leaf(&meter->leaf);
    enum pgpu_meter_status status = PGPU_METER_OK;
    if (meter->usage == NULL) {
        memcpy(meter->path, path, strlen(path) + 1);
        meter->gpu_count = gpu_count;
        status = claim(meter);
    }
    pgpu_unlock_leaf(&meter->leaf, before);
    return status;
}
