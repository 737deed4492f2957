/* Kernels by name and shape: one row for each in the log, shared by all processes of the job. */
#include <string.h>

#include "functions.h"
#include "trace/trace_shapes.h"

#define PROBES 64u

/* FNV-1a. */
static uint64_t hash(uint64_t seed, const void *bytes, size_t count) {
    const unsigned char *at = bytes;
    for (size_t i = 0; i < count; i++)
        seed = (seed ^ at[i]) * 0x100000001b3ull;
    return seed;
}

static uint64_t key_of(const struct pgpu_trace_command *command, const char *name) {
    uint64_t key = hash(0xcbf29ce484222325ull, name, strlen(name));
    key = hash(key, command->grid, sizeof(command->grid));
    key = hash(key, command->block, sizeof(command->block));
    key = hash(key, &command->shared_bytes, sizeof(command->shared_bytes));
    return key == 0 ? 1 : key;
}

/* The name of a function, or of a kernel passed in its place. Drivers before CUDA 12.3 return none. */
static const char *name_of(CUfunction function) {
    const char *name = NULL;
    CUfunction inner = NULL;
    if (PGPU_REAL(cuFuncGetName)(&name, function) == CUDA_SUCCESS && name != NULL) return name;
    if (PGPU_REAL(cuKernelGetFunction)(&inner, (CUkernel)function) == CUDA_SUCCESS &&
        PGPU_REAL(cuFuncGetName)(&name, inner) == CUDA_SUCCESS && name != NULL)
        return name;
    return "";
}

static uint32_t attribute_of(CUfunction function, CUfunction_attribute attribute) {
    int value = 0;
    CUresult result = PGPU_REAL(cuFuncGetAttribute)(&value, attribute, function);
    return result == CUDA_SUCCESS && value > 0 ? (uint32_t)value : 0;
}

static uint32_t blocks_per_sm(const struct pgpu_trace_command *command) {
    int blocks = 0;
    uint64_t threads = (uint64_t)command->block[0] * command->block[1] * command->block[2];
    if (threads == 0 || threads > INT32_MAX) return 0;
    CUresult result = PGPU_REAL(cuOccupancyMaxActiveBlocksPerMultiprocessor)(
        &blocks, command->function, (int)threads, command->shared_bytes);
    return result == CUDA_SUCCESS && blocks > 0 ? (uint32_t)blocks : 0;
}

static void describe(struct pgpu_trace_shape *row, const struct pgpu_trace_command *command,
                     const char *name) {
    size_t length = strlen(name);
    row->name_length = (uint32_t)length;
    memcpy(row->name, name, length < PGPU_TRACE_NAME_BYTES ? length : PGPU_TRACE_NAME_BYTES);
    memcpy(row->grid, command->grid, sizeof(row->grid));
    memcpy(row->block, command->block, sizeof(row->block));
    row->dynamic_shared_bytes = command->shared_bytes;
    row->static_shared_bytes = attribute_of(command->function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
    row->registers = attribute_of(command->function, CU_FUNC_ATTRIBUTE_NUM_REGS);
    row->blocks_per_sm = blocks_per_sm(command);
    __atomic_store_n(&row->is_ready, 1, __ATOMIC_RELEASE);
}

uint32_t pgpu_trace_shape_of(const struct pgpu_trace_command *command) {
    struct pgpu_trace *log = pgpu_trace_log();
    const char *name = name_of(command->function);
    uint64_t key = key_of(command, name);
    for (uint32_t probe = 0; probe < PROBES; probe++) {
        uint32_t at = (uint32_t)((key + probe) % PGPU_TRACE_MAX_SHAPES);
        uint64_t found = __atomic_load_n(&log->shape[at].key, __ATOMIC_ACQUIRE);
        if (found == 0 && __atomic_compare_exchange_n(&log->shape[at].key, &found, key, false,
                                                      __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            describe(&log->shape[at], command, name);
            return at + 1;
        }
        if (found == key) return at + 1;
    }
    pgpu_trace_count(&log->without_shape, 1);
    return 0;
}

static void lower(uint64_t *word, uint64_t value) {
    uint64_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    while ((seen == 0 || value < seen) &&
           !__atomic_compare_exchange_n(word, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

static void raise(uint64_t *word, uint64_t value) {
    uint64_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (value > seen &&
           !__atomic_compare_exchange_n(word, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

void pgpu_trace_measure(uint32_t shape, uint64_t duration_ns) {
    struct pgpu_trace *log = pgpu_trace_log();
    if (shape == 0 || log == NULL) return;
    struct pgpu_trace_shape *row = &log->shape[shape - 1];
    pgpu_trace_count(&row->measured, 1);
    pgpu_trace_count(&row->total_ns, duration_ns);
    lower(&row->shortest_ns, duration_ns + 1);
    raise(&row->longest_ns, duration_ns);
}
