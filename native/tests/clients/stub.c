/* What a program is linked against where no driver is installed; it is never loaded. */
#include "cuda_abi.h"

#define STUB(name, ...)                                                                                      \
    CUresult name(__VA_ARGS__) {                                                                             \
        return CUDA_ERROR_STUB_LIBRARY;                                                                      \
    }

#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC visibility push(default)
STUB(cuInit, unsigned int flags)
STUB(cuDeviceGet, CUdevice *device, int ordinal)
STUB(cuDeviceTotalMem_v2, size_t *bytes, CUdevice device)
STUB(cuDevicePrimaryCtxRetain, CUcontext *context, CUdevice device)
STUB(cuCtxSetCurrent, CUcontext context)
STUB(cuMemAlloc_v2, CUdeviceptr *pointer, size_t bytes)
