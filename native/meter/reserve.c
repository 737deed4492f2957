/* Counting for this process's slot, and taking back what the dead left. */
#include <fcntl.h>
#include <unistd.h>

#include "cancellation.h"
#include "lock.h"
#include "meter.h"
#include "operation.h"
#include "fault_points.h"

static bool take_back(struct pgpu_usage *usage, int fd, unsigned slot, unsigned gpu) {
    if (!pgpu_try_lock(fd, PGPU_LOCK_ALIVE + slot)) return false;
    PGPU_POINT(REAP_LOCKED);
    /* B cannot be taken anew while A is held, so one test is enough. */
    bool is_dead = !pgpu_is_locked(fd, PGPU_LOCK_HOLDING + slot);
    if (is_dead) pgpu_meter_note_reap(usage, gpu);
    if (is_dead) pgpu_meter_recover(usage, slot, gpu);
    PGPU_POINT(REAP_RECOVERED);
    pgpu_unlock(fd, PGPU_LOCK_ALIVE + slot);
    PGPU_POINT(REAP_UNLOCKED);
    return is_dead;
}

static unsigned slots_touched(const struct pgpu_usage *usage) {
    uint32_t touched = __atomic_load_n(&usage->slots_touched, __ATOMIC_SEQ_CST);
    return touched < PGPU_MAX_SLOTS ? touched : PGPU_MAX_SLOTS;
}

static bool may_be_dead(const struct pgpu_meter *meter, unsigned slot, unsigned gpu) {
    return slot != meter->slot && !pgpu_meter_entry_is_empty(&meter->usage->slot[slot].gpu[gpu]);
}

static bool reap_from(struct pgpu_meter *meter, unsigned slot, unsigned end, unsigned gpu) {
    /* A description of its own, so that closing it drops whatever it may still hold. */
    int fd = open(meter->path, O_RDWR | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return false;
    bool has_reaped = false;
    for (; slot < end; slot++)
        if (may_be_dead(meter, slot, gpu)) has_reaped |= take_back(meter->usage, fd, slot, gpu);
    close(fd);
    return has_reaped;
}

/* Most calls find no candidate and make no system call. Of all that runs under the mutex only this calls
 * functions that are cancellation points. */
static bool reap(struct pgpu_meter *meter, unsigned gpu) {
    unsigned slot = 0, end = slots_touched(meter->usage);
    while (slot < end && !may_be_dead(meter, slot, gpu))
        slot++;
    if (slot == end) return false;
    int before = pgpu_cancellation_defer();
    bool has_reaped = reap_from(meter, slot, end, gpu);
    pgpu_cancellation_restore(before);
    return has_reaped;
}

static bool reserve(struct pgpu_meter *meter, unsigned gpu, uint64_t bytes, uint64_t limit_bytes,
                    bool *reaped) {
    if (bytes > INT64_MAX) return false;
    if (pgpu_meter_operate(meter->usage, meter->slot, gpu, (int64_t)bytes, limit_bytes)) return true;
    *reaped = reap(meter, gpu);
    /* Even where nothing was found: another process may have taken it back between our refusal and our check.
     */
    if (!pgpu_meter_operate(meter->usage, meter->slot, gpu, (int64_t)bytes, limit_bytes)) return false;
    *reaped = true;
    return true;
}

enum pgpu_meter_status pgpu_meter_try_reserve(struct pgpu_meter *meter, unsigned gpu, uint64_t bytes,
                                              uint64_t limit_bytes, bool *reaped) {
    bool has_reaped = false;
    if (!pgpu_meter_is_claimed(meter) || gpu >= meter->gpu_count) return PGPU_METER_NOT_CLAIMED;
    pthread_mutex_lock(&meter->leaf);
    bool is_reserved = reserve(meter, gpu, bytes, limit_bytes, &has_reaped);
    pthread_mutex_unlock(&meter->leaf);
    if (reaped != NULL) *reaped = has_reaped;
    return is_reserved ? PGPU_METER_OK : PGPU_METER_REFUSED;
}

void pgpu_meter_note_limit_refusal(struct pgpu_meter *meter, unsigned gpu, uint64_t bytes) {
    if (!pgpu_meter_is_claimed(meter) || gpu >= meter->gpu_count) return;
    pgpu_meter_note_refusal(meter->usage, gpu, bytes);
}

enum pgpu_meter_status pgpu_meter_reserve(struct pgpu_meter *meter, unsigned gpu, uint64_t bytes,
                                          uint64_t limit_bytes, bool *reaped) {
    enum pgpu_meter_status status = pgpu_meter_try_reserve(meter, gpu, bytes, limit_bytes, reaped);
    if (status == PGPU_METER_REFUSED) pgpu_meter_note_limit_refusal(meter, gpu, bytes);
    return status;
}

void pgpu_meter_refund(struct pgpu_meter *meter, unsigned gpu, uint64_t bytes) {
    if (!pgpu_meter_is_claimed(meter) || gpu >= meter->gpu_count) return;
    pthread_mutex_lock(&meter->leaf);
    uint64_t own_bytes = pgpu_meter_entry_bytes(&meter->usage->slot[meter->slot].gpu[gpu]);
    if (bytes > own_bytes) bytes = own_bytes;
    if (bytes != 0) pgpu_meter_operate(meter->usage, meter->slot, gpu, -(int64_t)bytes, UINT64_MAX);
    pthread_mutex_unlock(&meter->leaf);
}

void pgpu_meter_note_device_refusal(struct pgpu_meter *meter, unsigned gpu) {
    if (!pgpu_meter_is_claimed(meter) || gpu >= meter->gpu_count) return;
    __atomic_fetch_add(&meter->usage->gpu[gpu].device_refusals, 1, __ATOMIC_RELAXED);
}

bool pgpu_meter_reap(struct pgpu_meter *meter, unsigned gpu) {
    if (!pgpu_meter_is_claimed(meter) || gpu >= meter->gpu_count) return false;
    pthread_mutex_lock(&meter->leaf);
    bool has_reaped = reap(meter, gpu);
    pthread_mutex_unlock(&meter->leaf);
    return has_reaped;
}

bool pgpu_meter_was_reaped(const struct pgpu_meter *meter, unsigned gpu, uint64_t within_ns) {
    if (!pgpu_meter_is_claimed(meter) || gpu >= meter->gpu_count) return false;
    uint64_t reaped_ns = __atomic_load_n(&meter->usage->gpu[gpu].reaped_ns, __ATOMIC_SEQ_CST);
    return reaped_ns != 0 && pgpu_meter_now_ns() - reaped_ns < within_ns;
}

uint64_t pgpu_meter_total_bytes(const struct pgpu_meter *meter, unsigned gpu) {
    if (!pgpu_meter_is_claimed(meter) || gpu >= meter->gpu_count) return 0;
    return __atomic_load_n(&meter->usage->gpu[gpu].total_bytes, __ATOMIC_SEQ_CST);
}

uint64_t pgpu_meter_own_bytes(const struct pgpu_meter *meter, unsigned gpu) {
    if (!pgpu_meter_is_claimed(meter) || gpu >= meter->gpu_count) return 0;
    return pgpu_meter_entry_bytes(&meter->usage->slot[meter->slot].gpu[gpu]);
}

const char *pgpu_meter_explain(enum pgpu_meter_status status) {
    switch (status) {
    case PGPU_METER_OK:
        return "no error";
    case PGPU_METER_REFUSED:
        return "the limit would be exceeded";
    case PGPU_METER_NOT_CLAIMED:
        return "no slot was claimed";
    case PGPU_METER_UNREADABLE:
        return "its usage file cannot be opened, grown or mapped";
    case PGPU_METER_GARBLED:
        return "its usage file is invalid";
    case PGPU_METER_NEWER:
        return "its usage file is of a newer version";
    case PGPU_METER_LOCKS_LOST:
        return "its usage file is on a filesystem that loses locks (use a tmpfs)";
    case PGPU_METER_FULL:
        return "its usage file has no free slot";
    }
    return "unknown";
}
