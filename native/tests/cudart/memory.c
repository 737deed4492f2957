/* Memory: device, host, pools, copies. */
#include <string.h>

#include "cudart.h"

enum kind { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, DEFAULT };

EXPORT cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    ENTER();
    *pointer = NULL;
    return bytes == 0 ? 0 : cudart_result(DRIVER(cuMemAlloc_v2)((CUdeviceptr *)pointer, bytes));
}

EXPORT cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned int flags) {
    ENTER();
    return cudart_result(DRIVER(cuMemAllocManaged)((CUdeviceptr *)pointer, bytes, flags));
}

EXPORT cudaError_t cudaFree(void *pointer) {
    ENTER();
    return pointer == NULL ? 0 : cudart_result(DRIVER(cuMemFree_v2)(address(pointer)));
}

EXPORT cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    ENTER();
    return cudart_result(DRIVER(cuMemGetInfo_v2)(free_bytes, total_bytes));
}

EXPORT cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags) {
    ENTER();
    return cudart_result(DRIVER(cuMemHostAlloc)(pointer, bytes, flags));
}

EXPORT cudaError_t cudaMallocHost(void **pointer, size_t bytes) {
    return cudaHostAlloc(pointer, bytes, 0);
}

EXPORT cudaError_t cudaFreeHost(void *pointer) {
    ENTER();
    return pointer == NULL ? 0 : cudart_result(DRIVER(cuMemFreeHost)(pointer));
}

EXPORT cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned int flags) {
    ENTER();
    return cudart_result(DRIVER(cuMemHostRegister_v2)(pointer, bytes, flags));
}

EXPORT cudaError_t cudaHostUnregister(void *pointer) {
    ENTER();
    return cudart_result(DRIVER(cuMemHostUnregister)(pointer));
}

EXPORT cudaError_t cudaHostGetDevicePointer(void **device_pointer, void *pointer, unsigned int flags) {
    ENTER();
    return cudart_result(DRIVER(cuMemHostGetDevicePointer_v2)((CUdeviceptr *)device_pointer, pointer, flags));
}

EXPORT cudaError_t cudaMallocAsync(void **pointer, size_t bytes, CUstream stream) {
    ENTER();
    return cudart_result(DRIVER(cuMemAllocAsync)((CUdeviceptr *)pointer, bytes, stream));
}

EXPORT cudaError_t cudaFreeAsync(void *pointer, CUstream stream) {
    ENTER();
    return cudart_result(DRIVER(cuMemFreeAsync)(address(pointer), stream));
}

EXPORT cudaError_t cudaMemPoolTrimTo(CUmemoryPool pool, size_t bytes) {
    return cudart_result(DRIVER(cuMemPoolTrimTo)(pool, bytes));
}

EXPORT cudaError_t cudaMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    return cudart_result(DRIVER(cuMemPoolSetAttribute)(pool, attribute, value));
}

EXPORT cudaError_t cudaMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    return cudart_result(DRIVER(cuMemPoolGetAttribute)(pool, attribute, value));
}

EXPORT cudaError_t cudaMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *accesses, size_t count) {
    return cudart_result(DRIVER(cuMemPoolSetAccess)(pool, accesses, count));
}

static CUresult copy(void *target, const void *source, size_t bytes, enum kind kind, CUstream stream) {
    if (kind == HOST_TO_DEVICE) return DRIVER(cuMemcpyHtoDAsync_v2)(address(target), source, bytes, stream);
    if (kind == DEVICE_TO_HOST) return DRIVER(cuMemcpyDtoHAsync_v2)(target, address(source), bytes, stream);
    if (kind == DEVICE_TO_DEVICE)
        return DRIVER(cuMemcpyDtoDAsync_v2)(address(target), address(source), bytes, stream);
    return DRIVER(cuMemcpyAsync)(address(target), address(source), bytes, stream);
}

EXPORT cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes, enum kind kind,
                                   CUstream stream) {
    ENTER();
    return bytes == 0 ? 0 : cudart_result(copy(target, source, bytes, kind, stream));
}

EXPORT cudaError_t cudaMemcpy(void *target, const void *source, size_t bytes, enum kind kind) {
    cudaError_t error = cudaMemcpyAsync(target, source, bytes, kind, NULL);
    return error != 0 ? error : cudart_result(DRIVER(cuStreamSynchronize)(NULL));
}

EXPORT cudaError_t cudaMemcpyPeerAsync(void *target, int target_device, const void *source, int source_device,
                                       size_t bytes, CUstream stream) {
    (void)target_device;
    (void)source_device;
    return cudaMemcpyAsync(target, source, bytes, DEVICE_TO_DEVICE, stream);
}

static CUmemorytype type_of(enum kind kind, bool is_target) {
    if (kind == DEFAULT) return CU_MEMORYTYPE_UNIFIED;
    bool is_device = is_target ? kind == HOST_TO_DEVICE || kind == DEVICE_TO_DEVICE : kind >= DEVICE_TO_HOST;
    return is_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
}

EXPORT cudaError_t cudaMemcpy2DAsync(void *target, size_t target_pitch, const void *source,
                                     size_t source_pitch, size_t width, size_t height, enum kind kind,
                                     CUstream stream) {
    ENTER();
    CUDA_MEMCPY2D copy = {.srcMemoryType = type_of(kind, false),
                          .srcHost = source,
                          .srcDevice = address(source),
                          .srcPitch = source_pitch,
                          .dstMemoryType = type_of(kind, true),
                          .dstHost = target,
                          .dstDevice = address(target),
                          .dstPitch = target_pitch,
                          .WidthInBytes = width,
                          .Height = height};
    return cudart_result(DRIVER(cuMemcpy2DAsync_v2)(&copy, stream));
}

EXPORT cudaError_t cudaMemsetAsync(void *target, int value, size_t bytes, CUstream stream) {
    ENTER();
    if (bytes == 0) return 0;
    return cudart_result(DRIVER(cuMemsetD8Async)(address(target), (unsigned char)value, bytes, stream));
}

EXPORT cudaError_t cudaMemset(void *target, int value, size_t bytes) {
    return cudaMemsetAsync(target, value, bytes, NULL);
}

struct pointer_attributes {
    int type; /* 0 unregistered, 1 host, 2 device, 3 managed */
    int device;
    void *device_pointer;
    void *host_pointer;
#if CUDART_MAJOR >= 13
    long reserved[8];
#endif
};

/* For the driver's "unknown pointer": unregistered host memory, not an error. */
EXPORT cudaError_t cudaPointerGetAttributes(struct pointer_attributes *attributes, const void *pointer) {
    ENTER();
    unsigned int type = 0, is_managed = 0;
    memset(attributes, 0, sizeof(*attributes));
    attributes->device = cudart_device();
    CUresult result =
        DRIVER(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address(pointer));
    if (result != CUDA_SUCCESS) {
        attributes->device = -1;
        attributes->host_pointer = (void *)(uintptr_t)pointer;
        return 0;
    }
    DRIVER(cuPointerGetAttribute)(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address(pointer));
    DRIVER(cuPointerGetAttribute)(&attributes->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address(pointer));
    attributes->type = is_managed ? 3 : type == CU_MEMORYTYPE_HOST ? 1 : 2;
    attributes->device_pointer = (void *)(uintptr_t)pointer;
    if (attributes->type != 2) attributes->host_pointer = (void *)(uintptr_t)pointer;
    return 0;
}

EXPORT cudaError_t cudaIpcGetMemHandle(CUipcMemHandle *handle, void *pointer) {
    ENTER();
    return cudart_result(DRIVER(cuIpcGetMemHandle)(handle, address(pointer)));
}

EXPORT cudaError_t cudaIpcOpenMemHandle(void **pointer, CUipcMemHandle handle, unsigned int flags) {
    ENTER();
    return cudart_result(DRIVER(cuIpcOpenMemHandle_v2)((CUdeviceptr *)pointer, handle, flags));
}

EXPORT cudaError_t cudaIpcCloseMemHandle(void *pointer) {
    ENTER();
    return cudart_result(DRIVER(cuIpcCloseMemHandle)(address(pointer)));
}
