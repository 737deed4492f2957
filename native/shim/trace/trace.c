/* The log itself: where it lies, how a record gets its place, and what the process holds of each kind. */
#include "trace/trace.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "functions.h"

#define SETTLE_EACH 16u

struct pgpu_trace *pgpu_trace_published;

static uint64_t capacity; /* the same, whichever thread finds it */
static uint64_t held_bytes[PGPU_MAX_GPUS][PGPU_TRACE_MEMORY_KINDS];

uint64_t pgpu_trace_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

void pgpu_trace_count(uint64_t *word, uint64_t more) {
    __atomic_fetch_add(word, more, __ATOMIC_RELAXED);
}

/* How many records the file has room for, whatever its header says. */
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

/* Threads that came together mapped it together; one mapping wins, the others stay and harm nobody. */
static void publish(struct pgpu_trace *log) {
    struct pgpu_trace_record record = {
        .kind = PGPU_TRACE_PROCESS, .bytes = (uint64_t)getpid(), .at_ns = pgpu_trace_now_ns()};
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
    if (log != NULL) publish(log);
}

void pgpu_trace_after_fork(void) {
    if (!pgpu_trace_is_on()) return;
    __atomic_store_n(&pgpu_trace_published, NULL, __ATOMIC_RELEASE);
    for (unsigned gpu = 0; gpu < PGPU_MAX_GPUS; gpu++)
        for (unsigned kind = 0; kind < PGPU_TRACE_MEMORY_KINDS; kind++)
            held_bytes[gpu][kind] = 0;
    pgpu_trace_forget_events();
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

/* Twice for both edges of the clock, as CUDA's own samples reckon. */
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
        .at_ns = pgpu_trace_now_ns(),
        .bytes = bytes,
        .duration_ns = bandwidth_of(place->ordinal),
        .context = (uint64_t)place->context};
    pgpu_trace_write(&record);
}

void pgpu_trace_memory(int gpu, enum pgpu_trace_memory kind, uint64_t change) {
    if (!pgpu_trace_is_on() || gpu < 0 || change == 0) return;
    struct pgpu_trace_record record = {
        .kind = PGPU_TRACE_MEMORY, .gpu = (uint8_t)gpu, .detail = kind, .at_ns = pgpu_trace_now_ns()};
    record.bytes = __atomic_add_fetch(&held_bytes[gpu][kind], change, __ATOMIC_RELAXED);
    pgpu_trace_write(&record);
}

static bool is_capturing(const struct pgpu_trace_command *command) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = command->is_per_thread ? PGPU_REAL(cuStreamIsCapturing_ptsz)(command->stream, &status)
                                             : PGPU_REAL(cuStreamIsCapturing)(command->stream, &status);
    return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Before Volta there is no carve-out, and a preference between L1 and shared memory instead. */
static bool carve(CUfunction function) {
    uint64_t asked = pgpu_slice_limit()->carve_out;
    if (asked == 0 || asked > 101) return false;
    int percent = (int)asked - 1;
    CUfunc_cache preference = percent == 0 ? CU_FUNC_CACHE_PREFER_L1 : CU_FUNC_CACHE_PREFER_SHARED;
    PGPU_REAL(cuFuncSetCacheConfig)(function, preference);
    CUresult result =
        PGPU_REAL(cuFuncSetAttribute)(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, percent);
    return result == CUDA_SUCCESS;
}

static void spent(struct pgpu_trace *log, uint64_t since_ns) {
    pgpu_trace_count(&log->self_ns, pgpu_trace_now_ns() - since_ns);
}

void pgpu_trace_begin(const struct pgpu_trace_command *command, struct pgpu_trace_span *span) {
    *span = (struct pgpu_trace_span){0};
    if (!pgpu_trace_is_on() || !pgpu_meter_is_claimed(&pgpu_slice_meter)) return;
    if (command->place.gpu == PGPU_NO_GPU || is_capturing(command)) return;
    span->is_open = true;
    span->at_ns = pgpu_trace_now_ns();
    if (command->kind == PGPU_TRACE_KERNEL) {
        span->flags = carve(command->function) ? PGPU_TRACE_CARVED : 0;
        span->shape = pgpu_trace_shape_of(command);
    }
    span->pair = pgpu_trace_pair_open(command);
    spent(pgpu_trace_log(), span->at_ns);
}

static struct pgpu_trace_record record_of(const struct pgpu_trace_command *command,
                                          const struct pgpu_trace_span *span) {
    return (struct pgpu_trace_record){.kind = command->kind,
                                      .gpu = (uint8_t)command->place.gpu,
                                      .flags = span->flags,
                                      .shape = span->shape,
                                      .detail = command->detail,
                                      .at_ns = span->at_ns,
                                      .stream = (uint64_t)command->stream,
                                      .bytes = command->bytes,
                                      .context = (uint64_t)command->place.context};
}

void pgpu_trace_end(const struct pgpu_trace_command *command, struct pgpu_trace_span *span, CUresult result) {
    if (!span->is_open) return;
    uint64_t since_ns = pgpu_trace_now_ns();
    struct pgpu_trace *log = pgpu_trace_log();
    if (log == NULL) return;
    if (result != CUDA_SUCCESS) {
        if (span->pair != NULL) pgpu_trace_pair_drop(span->pair);
        return;
    }
    struct pgpu_trace_record record = record_of(command, span);
    struct pgpu_trace_record *row = pgpu_trace_write(&record);
    if (span->shape != 0) pgpu_trace_count(&log->shape[span->shape - 1].launches, 1);
    if (span->pair == NULL)
        pgpu_trace_count(&log->unmeasured, 1);
    else
        pgpu_trace_pair_close(span->pair, command, row, span->shape);
    uint64_t calls = __atomic_fetch_add(&log->self_calls, 1, __ATOMIC_RELAXED);
    spent(log, since_ns);
    /* Most copies have waited for what was before them; and a program may never wait for anything else. */
    if (command->kind == PGPU_TRACE_COPY || calls % SETTLE_EACH == 0) pgpu_trace_settle();
}
