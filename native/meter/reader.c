#include "reader.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "lock.h"
#include "version.h"

#define HEADER_BYTES offsetof(struct pgpu_usage, slot)

/* The usage file's first page, without the slots. */
struct header {
    uint64_t magic;
    uint32_t abi;
    uint32_t slots_touched;
    uint64_t reserved[6];
    struct pgpu_usage_gpu gpu[PGPU_MAX_GPUS];
};
static_assert(offsetof(struct header, gpu) == offsetof(struct pgpu_usage, gpu), "layout");

static uint64_t entry_bytes(const struct pgpu_usage_entry *entry) {
    return entry->used_bytes[entry->settled & 1];
}

static void add_slot(struct pgpu_reader_view *view, const struct pgpu_usage_slot *found, unsigned number,
                     bool is_alive) {
    struct pgpu_reader_slot *slot = &view->slot[view->slot_count++];
    slot->slot = number;
    slot->pid = found->pid;
    slot->start_time_ticks = found->start_time_ticks;
    slot->pid_namespace = found->pid_namespace;
    slot->is_alive = is_alive;
    for (unsigned gpu = 0; gpu < PGPU_MAX_GPUS; gpu++)
        slot->used_bytes[gpu] = entry_bytes(&found->gpu[gpu]);
}

/* The total contains a dead process's bytes until a live one takes them back. That may happen between the
 * reads of total and slot, so the difference stops at 0. */
static void discount(struct pgpu_reader_view *view, const struct pgpu_usage_slot *dead) {
    for (unsigned gpu = 0; gpu < PGPU_MAX_GPUS; gpu++) {
        uint64_t total_bytes = view->gpu[gpu].used_bytes, dead_bytes = entry_bytes(&dead->gpu[gpu]);
        view->gpu[gpu].used_bytes = total_bytes > dead_bytes ? total_bytes - dead_bytes : 0;
    }
}

/* Takes no lock: F_OFD_GETLK only tests. A slot belongs to a live process while A is held, and still holds
 * memory while a forked child has the driver's descriptors (B). */
static void read_slots(int fd, unsigned touched, struct pgpu_reader_view *view) {
    for (unsigned number = 0; number < touched && number < PGPU_MAX_SLOTS; number++) {
        struct pgpu_usage_slot found;
        off_t at = (off_t)(HEADER_BYTES + number * sizeof(found));
        if (pread(fd, &found, sizeof(found), at) != (ssize_t)sizeof(found)) return;
        bool is_alive = pgpu_is_locked(fd, PGPU_LOCK_ALIVE + number);
        if (is_alive || pgpu_is_locked(fd, PGPU_LOCK_HOLDING + number))
            add_slot(view, &found, number, is_alive);
        else
            discount(view, &found);
    }
}

static enum pgpu_meter_status read_open(int fd, struct pgpu_reader_view *view) {
    struct header header = {0};
    /* pread instead of a mapping: a job that truncates the file would end this process with SIGBUS. */
    ssize_t length = pread(fd, &header, sizeof(header), 0);
    if (length == 0 || (length == sizeof(header) && header.magic == 0)) return PGPU_METER_OK;
    if (length != sizeof(header) || header.magic != PGPU_USAGE_MAGIC) return PGPU_METER_GARBLED;
    enum pgpu_meter_status status = pgpu_version_check(header.abi);
    if (status != PGPU_METER_OK) return status;
    for (unsigned gpu = 0; gpu < PGPU_MAX_GPUS; gpu++) {
        view->gpu[gpu].used_bytes = header.gpu[gpu].total_bytes;
        view->gpu[gpu].peak_bytes = header.gpu[gpu].peak_bytes;
        view->gpu[gpu].refusals = header.gpu[gpu].refusals;
    }
    read_slots(fd, header.slots_touched, view);
    return PGPU_METER_OK;
}

enum pgpu_meter_status pgpu_reader_read(const char *usage_path, struct pgpu_reader_view *view) {
    memset(view, 0, sizeof(*view));
    int fd = open(usage_path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return PGPU_METER_UNREADABLE;
    enum pgpu_meter_status status = read_open(fd, view);
    close(fd);
    return status;
}
