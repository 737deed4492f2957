#include "stream/shared_event.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "time/clock.h"
#include "memory/shared_allocation.h"
#include "stream/stream.h"

/* Number of recordings that are kept; an older one counts as passed. */
#define RECORDINGS 16u
#define NOT_KNOWN  UINT64_MAX
#define POLL_NS    100000

struct recording {
    uint64_t owner;
    uint32_t slot, gpu;
    uint64_t used_ns; /* of the owner, at that moment; 0: it has come; NOT_KNOWN: unknown */
};

/* What lies in the file. One process records at a time: two at once are a race of the clients. */
struct table {
    uint64_t count;
    struct recording recording[RECORDINGS];
};

struct sim_shared_event {
    struct table *table;
    bool is_own; /* made here, so the file ends with it */
    char name[SIM_SHARE_NAME_BYTES];
};

static uint64_t load(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

uint64_t sim_shared_event_last(const struct sim_shared_event *event) {
    return load(&event->table->count);
}

static void write_recording(struct table *table, uint64_t number, unsigned gpu, uint64_t used_ns) {
    struct recording *recording = &table->recording[number % RECORDINGS];
    __atomic_store_n(&recording->owner, sim_device_slot_owner(sim_driver.slot), __ATOMIC_RELAXED);
    __atomic_store_n(&recording->slot, sim_driver.slot, __ATOMIC_RELAXED);
    __atomic_store_n(&recording->gpu, gpu, __ATOMIC_RELAXED);
    __atomic_store_n(&recording->used_ns, used_ns, __ATOMIC_RELEASE);
}

static uint64_t add_recording(struct table *table, unsigned gpu, uint64_t used_ns) {
    uint64_t number = load(&table->count) + 1;
    write_recording(table, number, gpu, used_ns);
    __atomic_store_n(&table->count, number, __ATOMIC_RELEASE);
    return number;
}

uint64_t sim_shared_event_announce(struct sim_shared_event *event) {
    return add_recording(event->table, 0, NOT_KNOWN);
}

void sim_shared_event_record(struct sim_shared_event *event, uint64_t recording, unsigned gpu,
                             uint64_t at_ns) {
    uint64_t used_ns = sim_driver.has_backing ? sim_clock_used_at(gpu, at_ns) : 0;
    if (recording == 0)
        add_recording(event->table, gpu, used_ns);
    else if (load(&event->table->count) < recording + RECORDINGS)
        write_recording(event->table, recording, gpu, used_ns);
}

static bool owner_lives(const struct recording *recording) {
    uint32_t slot = __atomic_load_n(&recording->slot, __ATOMIC_RELAXED);
    if (slot >= PGPU_MAX_SLOTS || sim_device_slot_owner(slot) != load(&recording->owner)) return false;
    return slot == sim_driver.slot || sim_device_slot_is_alive(slot);
}

static bool has_come(const struct recording *recording) {
    uint64_t used_ns = load(&recording->used_ns);
    uint32_t slot = __atomic_load_n(&recording->slot, __ATOMIC_RELAXED),
             gpu = __atomic_load_n(&recording->gpu, __ATOMIC_RELAXED);
    if (used_ns == 0) return true;
    if (used_ns == NOT_KNOWN) return false;
    /* Another process may write anything there. */
    if (slot >= PGPU_MAX_SLOTS || gpu >= sim_driver.config.device_count) return true;
    return sim_activity_used_ns(&sim_driver.activity->gpu[gpu].slot[slot], sim_now_ns()) >= used_ns;
}

bool sim_shared_event_is_over(const struct sim_shared_event *event, uint64_t number) {
    uint64_t last = load(&event->table->count);
    if (number == SIM_LAST_RECORDING) number = last;
    if (number == 0 || last >= number + RECORDINGS) return true;
    const struct recording *recording = &event->table->recording[number % RECORDINGS];
    return has_come(recording) || !owner_lives(recording);
}

void sim_shared_event_wait(const struct sim_shared_event *event) {
    const struct timespec pause = {.tv_nsec = POLL_NS};
    uint64_t number = sim_shared_event_last(event);
    while (!sim_shared_event_is_over(event, number))
        nanosleep(&pause, NULL);
}

void sim_shared_event_close(struct sim_shared_event *event) {
    if (event->is_own) sim_share_file_remove(event->name);
    munmap(event->table, sizeof(*event->table));
    free(event);
}

/* Take over a descriptor of the file. */
static struct sim_shared_event *map(int fd, const char name[SIM_SHARE_NAME_BYTES], bool is_own) {
    struct sim_shared_event *event = calloc(1, sizeof(*event));
    struct stat status;
    bool is_whole = fd >= 0 && fstat(fd, &status) == 0 && status.st_size >= (off_t)sizeof(struct table);
    void *at = MAP_FAILED;
    if (event != NULL && is_whole)
        at = mmap(NULL, sizeof(struct table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (at == MAP_FAILED) {
        free(event);
        return NULL;
    }
    event->table = at;
    event->is_own = is_own;
    memcpy(event->name, name, sizeof(event->name));
    return event;
}

struct sim_shared_event *sim_shared_event_new(void) {
    char name[SIM_SHARE_NAME_BYTES] = {0};
    int fd = sim_share_file_make(name, sizeof(struct table));
    return map(fd, name, true);
}

SIM_EXPORT CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event) {
    SIM_ENTER();
    struct sim_share_ticket ticket = {.magic = SIM_SHARE_EVENT_MAGIC, .bytes = sizeof(struct table)};
    if (handle == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    bool is_live = event != NULL && sim_is_live(&sim_events, event);
    if (!is_live || event->is_imported || (event->flags & CU_EVENT_INTERPROCESS) == 0)
        return CUDA_ERROR_INVALID_HANDLE;
    ticket.gpu = event->context->gpu;
    memcpy(ticket.name, event->shared->name, sizeof(ticket.name));
    memcpy(handle, &ticket, sizeof(*handle));
    return CUDA_SUCCESS;
}

static struct sim_shared_event *open_ticket(const struct sim_share_ticket *ticket) {
    bool is_ticket = ticket->magic == SIM_SHARE_EVENT_MAGIC && ticket->name[SIM_SHARE_NAME_BYTES - 1] == '\0';
    return is_ticket ? map(sim_share_file_open(ticket->name), ticket->name, false) : NULL;
}

SIM_EXPORT CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle) {
    SIM_ENTER_CONTEXT(context);
    struct sim_share_ticket ticket;
    if (event == NULL) return CUDA_ERROR_INVALID_VALUE;
    memcpy(&ticket, &handle, sizeof(ticket));
    SIM_LOCKED();
    struct sim_shared_event *shared = open_ticket(&ticket);
    if (shared == NULL) return CUDA_ERROR_INVALID_HANDLE;
    CUevent made = sim_new(&sim_events);
    if (made == NULL) {
        sim_shared_event_close(shared);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->context = context;
    made->flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    made->is_imported = true;
    made->shared = shared;
    *event = made;
    return CUDA_SUCCESS;
}
