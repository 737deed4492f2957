/* The primary context of each device, shared by all callers that retain it. */
#include "context/context.h"

static struct primary {
    CUcontext context; /* NULL while it is not retained */
    unsigned retain_count, flags;
} primaries[SIM_MAX_GPUS];

static pthread_mutex_t primary_mutex = PTHREAD_MUTEX_INITIALIZER;

static CUresult retain(struct primary *primary, CUdevice device) {
    if (primary->context == NULL) {
        SIM_TRY(sim_context_new(device, primary->flags, &primary->context));
        primary->context->is_primary = true;
    }
    primary->retain_count++;
    return CUDA_SUCCESS;
}

static void drop(struct primary *primary) {
    if (primary->context == NULL) return;
    sim_context_delete(primary->context);
    primary->context = NULL;
}

SIM_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    SIM_ENTER();
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&primary_mutex);
    CUresult result = retain(&primaries[device], device);
    if (result == CUDA_SUCCESS) *context = primaries[device].context;
    pthread_mutex_unlock(&primary_mutex);
    return result;
}

static CUresult release(struct primary *primary) {
    if (primary->retain_count == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--primary->retain_count == 0) drop(primary);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    SIM_ENTER();
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&primary_mutex);
    CUresult result = release(&primaries[device]);
    pthread_mutex_unlock(&primary_mutex);
    return result;
}

/* Everything goes but the count: the callers that retained the context still release it. */
SIM_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    SIM_ENTER();
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&primary_mutex);
    drop(&primaries[device]);
    pthread_mutex_unlock(&primary_mutex);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
    SIM_ENTER();
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if ((flags & ~(unsigned)CU_CTX_FLAGS_MASK) != 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&primary_mutex);
    primaries[device].flags = flags;
    if (primaries[device].context != NULL) primaries[device].context->flags = flags;
    pthread_mutex_unlock(&primary_mutex);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
    SIM_ENTER();
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (flags == NULL || active == NULL) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&primary_mutex);
    *flags = primaries[device].flags;
    *active = primaries[device].context != NULL;
    pthread_mutex_unlock(&primary_mutex);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    return cuDevicePrimaryCtxRelease_v2(device);
}

SIM_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    return cuDevicePrimaryCtxReset_v2(device);
}

SIM_EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags) {
    return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}
