/* A driver of one GPU that does what the simulated one does not: it has green contexts, and it cannot bear to
 * be asked about a pool that is gone. It has no more functions than the tests ask for. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_abi.h"

#define BLOCK_BYTES (2ull << 20)

static cuuint64_t next_address = BLOCK_BYTES, reserved_bytes;
static char context, green_context, pool;
static int is_destroyed;

CUresult cuInit(unsigned int flags) {
    return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetCount(int *count) {
    *count = 1;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    memset(uuid, device, sizeof(*uuid));
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *current) {
    *current = (CUcontext)&context;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *retained, CUdevice device) {
    (void)device;
    *retained = (CUcontext)&context;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    (void)device;
    return CUDA_SUCCESS;
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

/* Our own exports are the shim's for us too, so we call none of them. */
static CUresult take_addresses(CUdeviceptr *pointer, size_t bytes) {
    *pointer = next_address;
    next_address += bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    return take_addresses(pointer, bytes);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *current, CUdevice device) {
    (void)device;
    *current = (CUmemoryPool)&pool;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool asked, CUmemPool_attribute attribute, void *value) {
    (void)asked, (void)attribute;
    if (is_destroyed) abort();
    memcpy(value, &reserved_bytes, sizeof(reserved_bytes));
    return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    (void)stream;
    reserved_bytes += bytes;
    return take_addresses(pointer, bytes);
}

CUresult cuMemPoolCreate(CUmemoryPool *made, const CUmemPoolProps *properties) {
    (void)properties;
    *made = (CUmemoryPool)&pool;
    return CUDA_SUCCESS;
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    (void)pointer, (void)stream;
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
    (void)stream;
    return CUDA_SUCCESS;
}

/* The shim's cuStreamSynchronize: what another thread may call while this one is in here. */
CUresult cuMemPoolDestroy(CUmemoryPool destroyed) {
    (void)destroyed;
    is_destroyed = 1;
    reserved_bytes = 0;
    CUresult (*synchronise)(CUstream) = (CUresult (*)(CUstream))dlsym(RTLD_DEFAULT, "cuStreamSynchronize");
    return synchronise(NULL);
}
