/* A record's place is claimed by one atomic addition, and its kind is stored last, with release: the host
 * reads a record only once its kind is there. Any number of processes write into one log. */
#include "trace/trace_log.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "functions.h"

struct pgpu_trace *pgpu_trace_published;

static uint64_t capacity; /* every thread computes the same value */
static uint64_t held_bytes[PGPU_MAX_GPUS][PGPU_TRACE_MEMORY_KINDS];

void pgpu_trace_count(uint64_t *word, uint64_t more) {
    __atomic_fetch_add(word, more, __ATOMIC_RELAXED);
}

/* Records that fit into the file, independent of its header. */
static uint64_t records_in(off_t size_bytes) {
    off_t first = (off_t)(PGPU_TRACE_OFFSET + offsetof(struct pgpu_trace, record));
    return size_bytes < first ? 0 : (uint64_t)(size_bytes - first) / sizeof(struct pgpu_trace_record);
}

static struct pgpu_trace *map(int fd) {
    off_t size_bytes = lseek(fd, 0, SEEK_END);
    uint64_t room = records_in(size_bytes);
    if (room == 0) return NULL;
    void *at = mmap(NULL, (size_t)(size_bytes - PGPU_TRACE_OFFSET), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                    (off_t)PGPU_TRACE_OFFSET);
    if (at == MAP_FAILED) return NULL;
    const struct pgpu_trace *log = at;
    if (log->magic != PGPU_TRACE_MAGIC || log->abi != PGPU_TRACE_ABI) {
        munmap(at, (size_t)(size_bytes - PGPU_TRACE_OFFSET));
        return NULL;
    }
    __atomic_store_n(&capacity, log->record_capacity < room ? log->record_capacity : room, __ATOMIC_RELEASE);
    return at;
}

/* The first mapping wins. Those of threads that arrived together stay mapped: another thread may write to
 * them. */
static void publish(struct pgpu_trace *log) {
    struct pgpu_trace_record record = {
        .kind = PGPU_TRACE_PROCESS, .bytes = (uint64_t)getpid(), .at_ns = pgpu_now_ns()};
    struct pgpu_trace *none = NULL;
    if (__atomic_compare_exchange_n(&pgpu_trace_published, &none, log, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE))
        pgpu_trace_write(&record);
}

void pgpu_trace_enter(void) {
    const struct pgpu_limit *limit = pgpu_slice_limit();
    if ((limit->flags & PGPU_LIMIT_TRACES) == 0 || pgpu_trace_is_on()) return;
    int fd = open(limit->usage_path, O_RDWR | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return;
    struct pgpu_trace *log = map(fd);
    close(fd);
    if (log == NULL) return;
    publish(log);
    __atomic_fetch_or(&pgpu_slice_launch_duties, PGPU_DUTY_TRACE, __ATOMIC_RELEASE);
}

void pgpu_trace_stop(void) {
    __atomic_fetch_and(&pgpu_slice_launch_duties, ~PGPU_DUTY_TRACE, __ATOMIC_RELAXED);
    __atomic_store_n(&pgpu_trace_published, NULL, __ATOMIC_RELEASE);
    for (unsigned gpu = 0; gpu < PGPU_MAX_GPUS; gpu++)
        for (unsigned kind = 0; kind < PGPU_TRACE_MEMORY_KINDS; kind++)
            held_bytes[gpu][kind] = 0;
}

struct pgpu_trace_record *pgpu_trace_write(const struct pgpu_trace_record *record) {
    struct pgpu_trace *log = pgpu_trace_log();
    if (log == NULL) return NULL;
    uint64_t place = __atomic_fetch_add(&log->claimed, 1, __ATOMIC_RELAXED);
    if (place >= __atomic_load_n(&capacity, __ATOMIC_ACQUIRE)) return NULL;
    struct pgpu_trace_record *row = &log->record[place];
    uint32_t kind = record->kind;
    *row = *record;
    row->slot = (uint16_t)pgpu_slice_meter.slot;
    __atomic_store_n(&row->kind, kind, __ATOMIC_RELEASE);
    return row;
}

static int attribute(CUdevice ordinal, CUdevice_attribute wanted) {
    int value = 0;
    CUresult result = PGPU_REAL(cuDeviceGetAttribute)(&value, wanted, ordinal);
    return result == CUDA_SUCCESS && value > 0 ? value : 0;
}

/* Twice for both edges of the clock, as in CUDA's own samples. */
static uint64_t bandwidth_of(CUdevice ordinal) {
    uint64_t clock_khz = (uint64_t)attribute(ordinal, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
    uint64_t bus_bits = (uint64_t)attribute(ordinal, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
    return 2 * clock_khz * 1000 * bus_bits / 8;
}

void pgpu_trace_context(const struct pgpu_place *place, uint64_t bytes) {
    if (!pgpu_trace_is_on() || place->gpu == PGPU_NO_GPU) return;
    struct pgpu_trace_record record = {
        .kind = PGPU_TRACE_CONTEXT,
        .gpu = (uint8_t)place->gpu,
        .detail = (uint32_t)attribute(place->ordinal, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        .shape = (uint32_t)attribute(place->ordinal, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR),
        .stream = (uint64_t)attribute(place->ordinal, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
        .at_ns = pgpu_now_ns(),
        .bytes = bytes,
        .duration_ns = bandwidth_of(place->ordinal),
        .context = (uint64_t)place->context};
    pgpu_trace_write(&record);
}

void pgpu_trace_memory(int gpu, enum pgpu_trace_memory kind, uint64_t change) {
    if (!pgpu_trace_is_on() || gpu < 0 || change == 0) return;
    struct pgpu_trace_record record = {
        .kind = PGPU_TRACE_MEMORY, .gpu = (uint8_t)gpu, .detail = kind, .at_ns = pgpu_now_ns()};
    record.bytes = __atomic_add_fetch(&held_bytes[gpu][kind], change, __ATOMIC_RELAXED);
    pgpu_trace_write(&record);
}
