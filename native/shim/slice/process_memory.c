/* The real NVML is loaded at the first question. No lock is held: threads that arrive together publish the
 * same values. */
#include "slice/process_memory.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cancellation.h"
#include "nvml_abi.h"
#include "slice/slice.h"

#define MOST_PROCESSES 128u
#define UUID_TEXT      41
/* Other threads may charge and refund meanwhile. */
#define TRIES 4

typedef __typeof__(nvmlDeviceGetComputeRunningProcesses_v3) list_function;

static enum { UNKNOWN, READY, MISSING } state;
static list_function *list;
static nvmlDevice_t devices[PGPU_MAX_GPUS]; /* NULL: not found */

static void write_uuid(char text[UUID_TEXT], const struct pgpu_limit_gpu *gpu) {
    static const char digits[] = "0123456789abcdef";
    memcpy(text, gpu->is_instance ? "MIG-" : "GPU-", 4);
    text += 4;
    for (unsigned i = 0; i < sizeof(gpu->uuid); i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) *text++ = '-';
        *text++ = digits[gpu->uuid[i] >> 4];
        *text++ = digits[gpu->uuid[i] & 15];
    }
    *text = '\0';
}

static bool has_loaded(const struct pgpu_limit *limit) {
    const char *path = limit->real_nvml_path;
    void *library = path[0] == '/' ? dlopen(path, RTLD_LOCAL | RTLD_NOW) : NULL;
    if (library == NULL) return false;
    __typeof__(nvmlInit_v2) *init = dlsym(library, "nvmlInit_v2");
    __typeof__(nvmlDeviceGetHandleByUUID) *find = dlsym(library, "nvmlDeviceGetHandleByUUID");
    list_function *found = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (found == NULL) found = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v2");
    if (init == NULL || find == NULL || found == NULL || init() != NVML_SUCCESS) return false;
    for (unsigned gpu = 0; gpu < limit->gpu_count; gpu++) {
        char uuid[UUID_TEXT];
        nvmlDevice_t device;
        write_uuid(uuid, &limit->gpu[gpu]);
        if (find(uuid, &device) == NVML_SUCCESS) __atomic_store_n(&devices[gpu], device, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&list, found, __ATOMIC_RELAXED);
    return true;
}

static bool is_ready(void) {
    int known = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
    if (known == UNKNOWN) {
        known = has_loaded(pgpu_slice_limit()) ? READY : MISSING;
        __atomic_store_n(&state, known, __ATOMIC_RELEASE);
    }
    return known == READY;
}

/* Drivers before r510 list PIDs of the host's namespace. One of them may equal this process's PID in its own,
 * but they are not all PIDs of this namespace: at least this process's is not. */
static bool is_of_another_namespace(unsigned pid) {
    return pid != 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

static bool find_own(nvmlDevice_t device, uint64_t *bytes) {
    nvmlProcessInfo_t processes[MOST_PROCESSES];
    unsigned count = MOST_PROCESSES, own = (unsigned)getpid();
    bool is_found = false;
    if (list(device, &count, processes) != NVML_SUCCESS) return false;
    *bytes = 0;
    for (unsigned i = 0; i < count; i++) {
        if (processes[i].pid != own) {
            if (is_of_another_namespace(processes[i].pid)) return false;
            continue;
        }
        if (processes[i].usedGpuMemory == NVML_NOT_AVAILABLE_U64) return false;
        *bytes += processes[i].usedGpuMemory;
        is_found = true;
    }
    return is_found;
}

bool pgpu_process_memory_read(int gpu, uint64_t *bytes) {
    int saved_errno = errno, before = pgpu_cancellation_defer();
    nvmlDevice_t device = is_ready() ? __atomic_load_n(&devices[gpu], __ATOMIC_RELAXED) : NULL;
    bool is_known = device != NULL && find_own(device, bytes);
    pgpu_cancellation_restore(before);
    errno = saved_errno;
    return is_known;
}

/* Whether no charge or refund of this process is under way; `seq` becomes the number of those so far. */
static bool is_at_rest(const struct pgpu_usage_entry *entry, uint64_t *seq) {
    *seq = __atomic_load_n(&entry->settled, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&entry->seq, __ATOMIC_SEQ_CST) == *seq;
}

bool pgpu_process_memory_uncharged(int gpu, uint64_t *bytes) {
    const struct pgpu_usage_entry *entry = &pgpu_slice_meter.usage->slot[pgpu_slice_meter.slot].gpu[gpu];
    for (unsigned attempt = 0; attempt < TRIES; attempt++) {
        uint64_t seq, seq_after, held_bytes;
        bool was_at_rest = is_at_rest(entry, &seq);
        uint64_t counted_bytes = pgpu_meter_own_bytes(&pgpu_slice_meter, (unsigned)gpu);
        if (!pgpu_process_memory_read(gpu, &held_bytes)) return false;
        if (!was_at_rest || !is_at_rest(entry, &seq_after) || seq != seq_after) continue;
        counted_bytes += pgpu_limit_overhead_bytes(pgpu_slice_limit(), (unsigned)gpu);
        *bytes = held_bytes > counted_bytes ? held_bytes - counted_bytes : 0;
        return true;
    }
    return false;
}
