/* Physical memory, multicast objects, and exports. An export is an open file of a device that others have
 * open too, as NVIDIA's is. */
#include <fcntl.h>
#include <string.h>

#include "strict.h"

static cuuint64_t last_handle = 1000;

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *properties, unsigned long long flags) {
    (void)bytes, (void)properties, (void)flags;
    *handle = ++last_handle;
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    return handle <= last_handle ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    (void)address, (void)bytes, (void)offset, (void)flags;
    return handle <= last_handle ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    (void)address, (void)bytes;
    return CUDA_SUCCESS;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *object, const CUmulticastObjectProp *properties) {
    (void)properties;
    *object = ++last_handle;
    return CUDA_SUCCESS;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t offset,
                            CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes,
                            unsigned long long flags) {
    (void)object, (void)offset, (void)memory_offset, (void)bytes;
    return flags == 0 && memory <= last_handle ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                               CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes,
                               unsigned long long flags) {
    (void)object, (void)offset, (void)memory_offset, (void)bytes, (void)device;
    return flags == 0 && memory <= last_handle ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr address,
                             size_t bytes, unsigned long long flags) {
    (void)object, (void)offset, (void)address, (void)bytes;
    return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                           size_t bytes) {
    (void)object, (void)device, (void)offset, (void)bytes;
    return CUDA_SUCCESS;
}

CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId endpoint, CUdevice device, cuuint64_t offset,
                                  CUmemGenericAllocationHandle memory, cuuint64_t memory_offset,
                                  cuuint64_t bytes, unsigned long long flags) {
    (void)endpoint, (void)device, (void)offset, (void)memory_offset, (void)bytes;
    return flags == 0 && memory <= last_handle ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId endpoint, CUdevice device, cuuint64_t offset,
                                   void *address, cuuint64_t bytes, unsigned long long flags) {
    (void)endpoint, (void)device, (void)offset, (void)address, (void)bytes;
    return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLogicalEndpointUnbind(CUlogicalEndpointId endpoint, CUdevice device, cuuint64_t offset,
                                 cuuint64_t bytes) {
    (void)endpoint, (void)device, (void)offset, (void)bytes;
    return CUDA_SUCCESS;
}

CUresult cuLogicalEndpointDestroy(CUlogicalEndpointId endpoint) {
    (void)endpoint;
    return CUDA_SUCCESS;
}

static CUresult export(void *shareable, unsigned long long flags) {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    int fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
    memcpy(shareable, &fd, sizeof(fd));
    return fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
    (void)handle, (void)type;
    return export(shareable, flags);
}

CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t bytes,
                                       CUmemRangeHandleType type, unsigned long long flags) {
    (void)address, (void)bytes, (void)type;
    return export(handle, flags);
}
