/* The process's place in its slice: which GPU of the limit file each device ordinal is, the slot that this
 * process has claimed in the usage file, and what happens around a fork. */
#include "slice/slice.h"

#include <stddef.h>

#include "functions.h"
#include "slice/lifecycle.h"
#include "slice/report.h"

/* More ordinals than a machine has GPUs and MIG instances; further ones are outside every lease. */
#define MAX_ORDINALS 1024
#define MIB          (1024ull * 1024ull)

struct pgpu_meter pgpu_slice_meter = PGPU_METER_INIT;
unsigned pgpu_slice_contexts_begun;
uint32_t pgpu_slice_launch_duties;

/* Index in the limit file plus one, so that zero means "not of the lease". */
static uint8_t gpu_plus_one[MAX_ORDINALS];
static int device_count;

/* The newer call returns a MIG instance's own UUID. */
static CUresult uuid_of(CUdevice ordinal, CUuuid *uuid) {
    if (pgpu_driver_has(PGPU_FUNCTION_cuDeviceGetUuid_v2))
        return PGPU_REAL(cuDeviceGetUuid_v2)(uuid, ordinal);
    return PGPU_REAL(cuDeviceGetUuid)(uuid, ordinal);
}

static CUresult read_gpus(void) {
    int count = 0;
    CUresult result = PGPU_REAL(cuDeviceGetCount)(&count);
    for (CUdevice ordinal = 0; result == CUDA_SUCCESS && ordinal < count && ordinal < MAX_ORDINALS;
         ordinal++) {
        CUuuid uuid;
        result = uuid_of(ordinal, &uuid);
        if (result != CUDA_SUCCESS) break;
        int gpu = pgpu_limit_index_of(pgpu_slice_limit(), (const uint8_t *)uuid.bytes);
        __atomic_store_n(&gpu_plus_one[ordinal], (uint8_t)(gpu + 1), __ATOMIC_RELEASE);
    }
    __atomic_store_n(&device_count, count, __ATOMIC_RELEASE);
    return result;
}

/* Every lock of the shim is held across a fork, so that the child finds none that a thread of its parent had
 * locked. The meter comes last: it is the innermost lock. */
static void before_fork(void) {
    for (unsigned part = 0; part < PGPU_LIFECYCLE_PARTS; part++)
        if (pgpu_lifecycle[part].before_fork != NULL) pgpu_lifecycle[part].before_fork();
    pgpu_meter_before_fork(&pgpu_slice_meter);
}

static void after_fork(bool is_child) {
    for (unsigned part = PGPU_LIFECYCLE_PARTS; part-- > 0;)
        if (pgpu_lifecycle[part].after_fork != NULL) pgpu_lifecycle[part].after_fork(is_child);
}

static void after_fork_in_parent(void) {
    pgpu_meter_after_fork_in_parent(&pgpu_slice_meter);
    after_fork(false);
}

/* A forked child has no slot; it claims one when it calls CUDA. */
static void after_fork_in_child(void) {
    pgpu_meter_after_fork_in_child(&pgpu_slice_meter);
    after_fork(true);
}

/* glibc keeps pthread_atfork in a static part that other C libraries do not have; musl has no
 * __register_atfork. Both are weak, so that one shim loads under either. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));
extern int pthread_atfork(void (*)(void), void (*)(void), void (*)(void)) __attribute__((weak));

static void guard_forks(void) {
    static bool is_guarded;
    if (__atomic_exchange_n(&is_guarded, true, __ATOMIC_SEQ_CST)) return;
    if (__register_atfork != NULL)
        __register_atfork(before_fork, after_fork_in_parent, after_fork_in_child, NULL);
    else if (pthread_atfork != NULL)
        pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static CUresult claim_slot(void) {
    const struct pgpu_limit *limit = pgpu_slice_limit();
    if (pgpu_meter_is_forked(&pgpu_slice_meter))
        for (unsigned part = 0; part < PGPU_LIFECYCLE_PARTS; part++)
            if (pgpu_lifecycle[part].after_raw_clone != NULL) pgpu_lifecycle[part].after_raw_clone();
    /* Where the job oversubscribes, the second half of the entries counts what must stay on the device. */
    unsigned entry_count = pgpu_limit_oversubscribes(limit) ? PGPU_MAX_GPUS : limit->gpu_count;
    enum pgpu_meter_status status = pgpu_meter_claim(&pgpu_slice_meter, limit->usage_path, entry_count);
    if (status == PGPU_METER_OK) return CUDA_SUCCESS;
    pgpu_report_refusal(pgpu_meter_explain(status), limit->usage_path);
    return CUDA_ERROR_NOT_PERMITTED;
}

CUresult pgpu_slice_enter(void) {
    if (pgpu_meter_is_claimed(&pgpu_slice_meter)) return CUDA_SUCCESS;
    CUresult result = read_gpus();
    if (result == CUDA_SUCCESS) guard_forks();
    int count = __atomic_load_n(&device_count, __ATOMIC_ACQUIRE);
    for (unsigned part = 0; result == CUDA_SUCCESS && part < PGPU_LIFECYCLE_PARTS; part++)
        if (pgpu_lifecycle[part].enter != NULL) result = pgpu_lifecycle[part].enter(count);
    if (result == CUDA_SUCCESS) result = claim_slot();
    for (unsigned part = 0; result == CUDA_SUCCESS && part < PGPU_LIFECYCLE_PARTS; part++)
        if (pgpu_lifecycle[part].begin != NULL) pgpu_lifecycle[part].begin();
    return result;
}

int pgpu_slice_gpu_of(CUdevice ordinal) {
    if (ordinal < 0 || ordinal >= MAX_ORDINALS) return PGPU_NO_GPU;
    return (int)__atomic_load_n(&gpu_plus_one[ordinal], __ATOMIC_ACQUIRE) - 1;
}

/* On a machine with one device every context is on it. */
static bool is_of_only_device(struct pgpu_place *place) {
    if (__atomic_load_n(&device_count, __ATOMIC_ACQUIRE) != 1) return false;
    if (PGPU_REAL(cuCtxGetCurrent)(&place->context) != CUDA_SUCCESS || place->context == NULL) return false;
    place->ordinal = 0;
    place->gpu = pgpu_slice_gpu_of(0);
    return true;
}

CUresult pgpu_slice_current(struct pgpu_place *place) {
    if (is_of_only_device(place)) return CUDA_SUCCESS;
    CUresult result = PGPU_REAL(cuCtxGetDevice)(&place->ordinal);
    if (result == CUDA_SUCCESS) result = PGPU_REAL(cuCtxGetCurrent)(&place->context);
    place->gpu = result == CUDA_SUCCESS ? pgpu_slice_gpu_of(place->ordinal) : PGPU_NO_GPU;
    return result;
}

static CUresult device_of(CUcontext context, CUdevice *ordinal) {
    CUcontext popped;
    CUresult result = PGPU_REAL(cuCtxPushCurrent_v2)(context);
    if (result != CUDA_SUCCESS) return result;
    result = PGPU_REAL(cuCtxGetDevice)(ordinal);
    PGPU_REAL(cuCtxPopCurrent_v2)(&popped);
    return result;
}

CUresult pgpu_slice_of_stream(CUstream stream, bool is_per_thread, struct pgpu_place *place) {
    CUcontext context = NULL;
    CUresult result = pgpu_slice_current(place);
    if (result != CUDA_SUCCESS || pgpu_is_default_stream(stream)) return result;
    result = is_per_thread ? PGPU_REAL(cuStreamGetCtx_ptsz)(stream, &context)
                           : PGPU_REAL(cuStreamGetCtx)(stream, &context);
    if (result != CUDA_SUCCESS || context == place->context) return result;
    place->context = context;
    result = device_of(context, &place->ordinal);
    place->gpu = result == CUDA_SUCCESS ? pgpu_slice_gpu_of(place->ordinal) : PGPU_NO_GPU;
    return result;
}

/* A thread may get here while another one is still in the first cuInit: the driver serves all threads by
 * then. */
int pgpu_slice_device_count(void) {
    if (!pgpu_meter_is_claimed(&pgpu_slice_meter)) pgpu_slice_enter();
    return __atomic_load_n(&device_count, __ATOMIC_ACQUIRE);
}

uint64_t pgpu_slice_context_bytes(int gpu) {
    if (gpu == PGPU_NO_GPU) return 0;
    return __atomic_load_n(&pgpu_slice_limit()->gpu[gpu].context_bytes, __ATOMIC_RELAXED);
}

static uint64_t round_up(uint64_t bytes, uint64_t unit) {
    return bytes > UINT64_MAX - unit ? bytes : (bytes + unit - 1) / unit * unit;
}

/* Small allocations share 2 MiB blocks in units of 512 B; large ones take whole blocks. */
uint64_t pgpu_slice_granule(uint64_t bytes) {
    return round_up(bytes, bytes < 2 * MIB ? 512 : 2 * MIB);
}

void pgpu_slice_forbid_checkpoint(void) {
    if (pgpu_meter_is_claimed(&pgpu_slice_meter))
        __atomic_store_n(&pgpu_slice_meter.usage->slot[pgpu_slice_meter.slot].stays, 1, __ATOMIC_RELAXED);
}
