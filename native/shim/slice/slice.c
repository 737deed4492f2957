#include "slice/slice.h"

#include "functions.h"
#include "time/gate.h"
#include "slice/holdings.h"
#include "memory/paging.h"
#include "slice/report.h"
#include "time/streams.h"
#include "trace/trace.h"

/* More ordinals than a machine has GPUs and MIG instances; further ones are outside every lease. */
#define MAX_ORDINALS 1024
#define MIB          (1024ull * 1024ull)

const struct pgpu_limit *pgpu_slice_published_limit;
struct pgpu_meter pgpu_slice_meter = PGPU_METER_INIT;
unsigned pgpu_slice_contexts_begun;

/* Index in the limit file plus one, so that zero is "not of the lease". */
static uint8_t gpu_plus_one[MAX_ORDINALS];
static int device_count;

/* The newer call tells a MIG instance's own UUID. */
static CUresult uuid_of(CUdevice ordinal, CUuuid *uuid) {
    if (pgpu_driver_has(PGPU_FUNCTION_cuDeviceGetUuid_v2))
        return PGPU_REAL(cuDeviceGetUuid_v2)(uuid, ordinal);
    return PGPU_REAL(cuDeviceGetUuid)(uuid, ordinal);
}

static CUresult learn_gpus(void) {
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

/* Of the usage file; where memory is pageable the second half is in use too. */
static unsigned entry_count(void) {
    return pgpu_paging_is_on() ? PGPU_MAX_GPUS : pgpu_slice_limit()->gpu_count;
}

CUresult pgpu_slice_enter(void) {
    if (pgpu_meter_is_claimed(&pgpu_slice_meter)) return CUDA_SUCCESS;
    CUresult result = learn_gpus();
    if (result != CUDA_SUCCESS) return result;
    result = pgpu_paging_check(__atomic_load_n(&device_count, __ATOMIC_ACQUIRE));
    if (result != CUDA_SUCCESS) return result;
    pgpu_slice_guard_forks();
    const char *why = pgpu_gate_enter();
    if (why != NULL) {
        pgpu_report_refusal(why, NULL);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if (pgpu_meter_is_forked(&pgpu_slice_meter)) {
        pgpu_holdings_after_fork(true);
        pgpu_trace_after_fork();
    }
    enum pgpu_meter_status status =
        pgpu_meter_claim(&pgpu_slice_meter, pgpu_slice_limit()->usage_path, entry_count());
    if (status == PGPU_METER_OK) {
        pgpu_trace_enter();
        return CUDA_SUCCESS;
    }
    pgpu_report_refusal(pgpu_meter_explain(status), pgpu_slice_limit()->usage_path);
    return CUDA_ERROR_NOT_PERMITTED;
}

int pgpu_slice_gpu_of(CUdevice ordinal) {
    if (ordinal < 0 || ordinal >= MAX_ORDINALS) return PGPU_NO_GPU;
    return (int)__atomic_load_n(&gpu_plus_one[ordinal], __ATOMIC_ACQUIRE) - 1;
}

/* Where there is one device all contexts are its. */
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
    if (result != CUDA_SUCCESS || pgpu_streams_is_default(stream)) return result;
    result = is_per_thread ? PGPU_REAL(cuStreamGetCtx_ptsz)(stream, &context)
                           : PGPU_REAL(cuStreamGetCtx)(stream, &context);
    if (result != CUDA_SUCCESS || context == place->context) return result;
    place->context = context;
    result = device_of(context, &place->ordinal);
    place->gpu = result == CUDA_SUCCESS ? pgpu_slice_gpu_of(place->ordinal) : PGPU_NO_GPU;
    return result;
}

/* A thread may come here while another is still in the first cuInit, whose driver serves everybody already.
 */
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
