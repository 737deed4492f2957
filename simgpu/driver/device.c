/* Devices: how many, which, and what each one is. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "driver/driver.h"

SIM_EXPORT CUresult cuDeviceGetCount(int *count) {
    SIM_ENTER();
    if (count == NULL) return CUDA_ERROR_INVALID_VALUE;
    *count = sim_driver.device_count;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    SIM_ENTER();
    if (device == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    SIM_ENTER();
    if (name == NULL || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)length, "%s", sim_gpu_of(device)->name);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    SIM_ENTER();
    if (uuid == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid->bytes, sim_gpu_of(device)->uuid, sizeof(uuid->bytes));
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    return cuDeviceGetUuid_v2(uuid, device);
}

SIM_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    SIM_ENTER();
    if (bytes == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = sim_gpu_of(device)->memory_bytes;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    SIM_ENTER();
    if (major == NULL || minor == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *major = (int)sim_gpu_of(device)->compute_major;
    *minor = (int)sim_gpu_of(device)->compute_minor;
    return CUDA_SUCCESS;
}

/* NVML writes the domain with 8 digits, CUDA with 4. */
static const char *short_bus_id(const struct sim_gpu *gpu) {
    const char *id = gpu->pci_bus_id;
    return strlen(id) == 16 && strncmp(id, "0000", 4) == 0 ? id + 4 : id;
}

SIM_EXPORT CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device) {
    SIM_ENTER();
    if (id == NULL || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(id, (size_t)length, "%s", short_bus_id(sim_gpu_of(device)));
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id) {
    SIM_ENTER();
    if (device == NULL || id == NULL) return CUDA_ERROR_INVALID_VALUE;
    for (*device = 0; *device < sim_driver.device_count; ++*device) {
        const struct sim_gpu *gpu = sim_gpu_of(*device);
        if (strcasecmp(gpu->pci_bus_id, id) == 0 || strcasecmp(short_bus_id(gpu), id) == 0)
            return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuDeviceGetProperties(CUdevprop *properties, CUdevice device) {
    SIM_ENTER();
    if (properties == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *properties = (CUdevprop){.maxThreadsPerBlock = 1024,
                              .maxThreadsDim = {1024, 1024, 64},
                              .maxGridSize = {0x7fffffff, 65535, 65535},
                              .sharedMemPerBlock = 49152,
                              .totalConstantMemory = 65536,
                              .SIMDWidth = 32,
                              .memPitch = 0x7fffffff,
                              .regsPerBlock = 65536,
                              .clockRate = (int)sim_gpu_of(device)->clock_khz,
                              .textureAlign = 512};
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *width, CUarray_format format,
                                                       unsigned channels, CUdevice device) {
    SIM_ENTER();
    (void)format;
    if (width == NULL || channels == 0 || channels > 4) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *width = 1u << 28;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetExecAffinitySupport(int *is_supported, CUexecAffinityType type,
                                                   CUdevice device) {
    SIM_ENTER();
    if (is_supported == NULL || type != CU_EXEC_AFFINITY_TYPE_SM_COUNT) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *is_supported = 0;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetLuid(char *luid, unsigned int *node_mask, CUdevice device) {
    (void)luid, (void)node_mask, (void)device;
    return CUDA_ERROR_NOT_SUPPORTED; /* Windows only */
}
