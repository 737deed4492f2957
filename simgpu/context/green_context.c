#include "context/green_context.h"

#include "texture/array.h"
#include "module/module.h"
#include "memory/range.h"
#include "context/device_resource.h"
#include "stream/stream.h"

static struct sim_slab greens = SIM_SLAB(struct CUgreenCtx_st, 256, 1u << 12);

static CUresult check(CUgreenCtx green) {
    return green != NULL && sim_is_live(&greens, green) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult make(CUcontext primary, CUdevice device, const CUdevResource *share, CUgreenCtx *made) {
    CUgreenCtx green = sim_new(&greens);
    if (green == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = sim_context_new_green(primary, green, &green->context);
    if (result != CUDA_SUCCESS) {
        sim_delete(&greens, green);
        return result;
    }
    green->device = device;
    green->share = *share;
    *made = green;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc description, CUdevice device,
                                     unsigned int flags) {
    SIM_ENTER();
    CUdevResource share;
    CUcontext primary;
    if (green == NULL || flags > CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    SIM_TRY(sim_share_described(description, device, &share));
    SIM_TRY(cuDevicePrimaryCtxRetain(&primary, device));
    CUresult result = make(primary, device, &share, green);
    if (result != CUDA_SUCCESS) cuDevicePrimaryCtxRelease_v2(device);
    return result;
}

SIM_EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green) {
    SIM_ENTER();
    SIM_TRY(check(green));
    CUdevice device = green->device;
    if (sim_stack_top() == green->context) sim_stack_pop();
    sim_context_delete_green(green->context);
    sim_delete(&greens, green);
    cuDevicePrimaryCtxRelease_v2(device); /* after a reset no reference is valid any more */
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green) {
    SIM_ENTER();
    SIM_TRY(check(green));
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    *context = green->context;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGreenCtxGetId(CUgreenCtx green, unsigned long long *id) {
    SIM_ENTER();
    SIM_TRY(check(green));
    if (id == NULL) return CUDA_ERROR_INVALID_VALUE;
    *id = green->context->id;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned int flags,
                                           int priority) {
    SIM_ENTER();
    SIM_TRY(check(green));
    if (stream == NULL || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    *stream = sim_stream_new(green->context, flags, sim_stream_priority(priority));
    return *stream == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event) {
    SIM_ENTER();
    SIM_TRY(check(green));
    return cuCtxRecordEvent(green->context, event);
}

SIM_EXPORT CUresult cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) {
    SIM_ENTER();
    SIM_TRY(check(green));
    return cuCtxWaitEvent(green->context, event);
}

static CUresult share_of(CUcontext context, CUdevResource *share, CUdevResourceType type) {
    if (share == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (context->green == NULL) return cuDeviceGetDevResource(context->device, share, type);
    if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    *share = context->green->share;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource *share, CUdevResourceType type) {
    SIM_ENTER();
    SIM_TRY(check(green));
    return share_of(green->context, share, type);
}

SIM_EXPORT CUresult cuCtxGetDevResource(CUcontext context, CUdevResource *share, CUdevResourceType type) {
    SIM_ENTER();
    if (context == NULL) SIM_TRY(sim_current_context(&context));
    if (!sim_is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    return share_of(context, share, type);
}

SIM_EXPORT CUresult cuStreamGetDevResource(CUstream named, CUdevResource *share, CUdevResourceType type) {
    SIM_ENTER();
    CUstream stream;
    SIM_TRY(sim_stream_of(named, &stream));
    return share_of(stream->context, share, type);
}

SIM_EXPORT CUresult cuStreamGetGreenCtx(CUstream named, CUgreenCtx *green) {
    SIM_ENTER();
    CUstream stream;
    if (green == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_stream_of(named, &stream));
    *green = stream->context->green;
    return CUDA_SUCCESS;
}

/* A stream of a green context has no other. */
SIM_EXPORT CUresult cuStreamGetCtx_v2(CUstream named, CUcontext *context, CUgreenCtx *green) {
    SIM_ENTER();
    CUstream stream;
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_stream_of(named, &stream));
    bool is_green = stream->context->green != NULL;
    *context = is_green && green != NULL ? NULL : stream->context;
    if (green != NULL) *green = stream->context->green;
    return CUDA_SUCCESS;
}
