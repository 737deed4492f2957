/* One primary context and one green one; their ends destroy their events. */
#include "strict.h"

static char context, green_context;

CUresult cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *current) {
    *current = (CUcontext)&context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext pushed) {
    return pushed == (CUcontext)&context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxPopCurrent_v2(CUcontext *popped) {
    *popped = (CUcontext)&context;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *retained, CUdevice device) {
    (void)device;
    *retained = (CUcontext)&context;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    (void)device;
    strict_end_events();
    return strict_let_another_thread_synchronise();
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    (void)device;
    strict_end_events();
    return strict_let_another_thread_synchronise();
}

CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc description, CUdevice device,
                          unsigned int flags) {
    (void)description, (void)device, (void)flags;
    *green = (CUgreenCtx)&green_context;
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green) {
    return green == (CUgreenCtx)&green_context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
