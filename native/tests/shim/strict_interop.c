/* Contexts that share with graphics interfaces, which a machine without a display has none of. */
#include "strict.h"

static char context_of_gl, context_of_vdpau;

CUresult cuGLCtxCreate_v2(CUcontext *made, unsigned int flags, CUdevice device) {
    (void)flags, (void)device;
    *made = (CUcontext)&context_of_gl;
    return CUDA_SUCCESS;
}

CUresult cuVDPAUCtxCreate_v2(CUcontext *made, unsigned int flags, CUdevice device, VdpDevice vdpau,
                             VdpGetProcAddress *look_up) {
    (void)flags, (void)device;
    if (vdpau != 7 || look_up == NULL) return CUDA_ERROR_INVALID_VALUE;
    *made = (CUcontext)&context_of_vdpau;
    return CUDA_SUCCESS;
}

CUresult cuCtxDestroy_v2(CUcontext context) {
    return context == (CUcontext)&context_of_gl || context == (CUcontext)&context_of_vdpau
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_CONTEXT;
}
