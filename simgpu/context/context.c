/* Making, destroying and querying contexts. */
#include "context/context.h"

#include "texture/array.h"
#include "module/module.h"
#include "mps/mps.h"
#include "memory/range.h"
#include "stream/stream.h"

struct sim_slab sim_contexts = SIM_SLAB(struct CUctx_st, 512, 4096);

static void set_limits(CUcontext context) {
    context->limit[CU_LIMIT_STACK_SIZE] = 1024;
    context->limit[CU_LIMIT_PRINTF_FIFO_SIZE] = 7340032;
    context->limit[CU_LIMIT_MALLOC_HEAP_SIZE] = 8388608;
    context->limit[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
    context->limit[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
    context->limit[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
}

static CUresult fill(CUcontext context, CUdevice device, unsigned flags) {
    static unsigned long long last_id;
    context->gpu = sim_driver.gpu_of_device[device];
    context->device = device;
    context->flags = flags;
    context->api_version = 3020;
    context->id = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
    set_limits(context);
    context->legacy = sim_stream_new(context, 0, 0);
    return context->legacy == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult make(CUdevice device, unsigned flags, CUcontext *context) {
    *context = sim_new(&sim_contexts);
    if (*context == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = fill(*context, device, flags);
    if (result != CUDA_SUCCESS) sim_delete(&sim_contexts, *context);
    return result;
}

CUresult sim_context_new(CUdevice device, unsigned flags, CUcontext *context) {
    unsigned gpu = sim_driver.gpu_of_device[device];
    uint64_t bytes = sim_driver.config.gpu[gpu].context_bytes;
    SIM_TRY(sim_mps_open(gpu));
    CUresult result = sim_device_reserve(gpu, bytes);
    if (result == CUDA_SUCCESS) {
        result = make(device, flags, context);
        if (result != CUDA_SUCCESS) sim_device_refund(gpu, bytes);
    }
    if (result != CUDA_SUCCESS) sim_mps_close(gpu);
    return result;
}

void sim_context_delete(CUcontext context) {
    sim_context_wait(context);
    sim_lock();
    sim_modules_delete_of(context);
    sim_ranges_delete_of(context);
    sim_arrays_delete_of(context);
    sim_streams_delete_of(context);
    unsigned gpu = context->gpu;
    sim_delete(&sim_contexts, context);
    sim_unlock();
    sim_device_refund(gpu, sim_driver.config.gpu[gpu].context_bytes);
    sim_mps_close(gpu);
}

CUresult sim_context_new_green(CUcontext primary, CUgreenCtx green, CUcontext *context) {
    SIM_LOCKED();
    *context = sim_new(&sim_contexts);
    if (*context == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = fill(*context, primary->device, primary->flags);
    (*context)->primary = primary;
    (*context)->green = green;
    if (result != CUDA_SUCCESS) sim_delete(&sim_contexts, *context);
    return result;
}

void sim_context_delete_green(CUcontext context) {
    sim_context_wait(context);
    SIM_LOCKED();
    CUcontext primary = context->primary;
    if (sim_is_context(primary)) {
        sim_modules_move(context, primary);
        sim_ranges_move(context, primary);
        sim_arrays_move(context, primary);
        sim_streams_detach(context, primary);
    } else {
        sim_modules_delete_of(context);
        sim_ranges_delete_of(context);
        sim_arrays_delete_of(context);
        sim_streams_delete_of(context);
    }
    sim_delete(&sim_contexts, context);
}

static CUresult create(CUcontext *context, unsigned flags, CUdevice device) {
    SIM_ENTER();
    if (context == NULL || (flags & ~(unsigned)CU_CTX_FLAGS_MASK) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    SIM_TRY(sim_context_new(device, flags, context));
    CUresult result = sim_stack_push(*context);
    if (result != CUDA_SUCCESS) sim_context_delete(*context);
    return result;
}

SIM_EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
    return create(context, flags, device);
}

SIM_EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) {
    return create(context, flags, device);
}

SIM_EXPORT CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int affinity_count,
                                   unsigned int flags, CUdevice device) {
    SIM_ENTER();
    if (affinity_count < 0 || (affinity_count > 0 && affinity == NULL)) return CUDA_ERROR_INVALID_VALUE;
    /* Execution affinity exists under MPS alone. */
    if (affinity_count > 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return create(context, flags, device);
}

SIM_EXPORT CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned int flags,
                                   CUdevice device) {
    if (parameters == NULL) return create(context, flags, device);
    return cuCtxCreate_v3(context, parameters->execAffinityParams, parameters->numExecAffinityParams, flags,
                          device);
}

SIM_EXPORT CUresult cuCtxDestroy_v2(CUcontext context) {
    SIM_ENTER();
    if (!sim_is_context(context) || context->is_primary || context->primary != NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (sim_stack_top() == context) sim_stack_pop();
    sim_context_delete(context);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxDestroy(CUcontext context) {
    return cuCtxDestroy_v2(context);
}

SIM_EXPORT CUresult cuCtxAttach(CUcontext *context, unsigned int flags) {
    SIM_ENTER_CONTEXT(current);
    if (context == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    *context = current;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxDetach(CUcontext context) {
    SIM_ENTER_CONTEXT(current);
    return context == current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

SIM_EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    SIM_ENTER_CONTEXT(context);
    if (device == NULL) return CUDA_ERROR_INVALID_VALUE;
    *device = context->device;
    return CUDA_SUCCESS;
}

/* NULL stands for the current context. */
static CUresult named_or_current(CUcontext *context) {
    if (*context == NULL) return sim_current_context(context);
    return sim_is_context(*context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

SIM_EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
    SIM_ENTER();
    SIM_TRY(named_or_current(&context));
    if (device == NULL) return CUDA_ERROR_INVALID_VALUE;
    *device = context->device;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxGetId(CUcontext context, unsigned long long *id) {
    SIM_ENTER();
    SIM_TRY(named_or_current(&context));
    if (id == NULL) return CUDA_ERROR_INVALID_VALUE;
    *id = context->id;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxSynchronize(void) {
    SIM_ENTER_CONTEXT(context);
    sim_context_wait(context);
    return sim_outcome();
}

SIM_EXPORT CUresult cuCtxSynchronize_v2(CUcontext context) {
    SIM_ENTER();
    SIM_TRY(named_or_current(&context));
    sim_context_wait(context);
    return sim_outcome();
}

SIM_EXPORT CUresult cuCtxGetApiVersion(CUcontext context, unsigned int *version) {
    SIM_ENTER();
    SIM_TRY(named_or_current(&context));
    if (version == NULL) return CUDA_ERROR_INVALID_VALUE;
    *version = context->api_version;
    return CUDA_SUCCESS;
}
