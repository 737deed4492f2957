/* What a GPU is: its name, its UUID and what its product is built of. */
#include <stdio.h>
#include <string.h>

#include "nvml/nvml_state.h"

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    NVML_ENTER_DEVICE(device, gpu);
    return sim_nvml_copy(name, length, sim_nvml_gpu(gpu)->name);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    NVML_ENTER_DEVICE(device, gpu);
    return sim_nvml_copy(uuid, length, sim_nvml_gpu(gpu)->uuid_text);
}

static nvmlBrandType_t brand_of(const char *name) {
    if (strstr(name, "GeForce RTX") != NULL) return NVML_BRAND_GEFORCE_RTX;
    if (strstr(name, "GeForce") != NULL) return NVML_BRAND_GEFORCE;
    if (strstr(name, "Tesla") != NULL) return NVML_BRAND_TESLA;
    return NVML_BRAND_NVIDIA;
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t *brand) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(brand != NULL);
    *brand = brand_of(sim_nvml_gpu(gpu)->name);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t *architecture) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(architecture != NULL);
    *architecture = (nvmlDeviceArchitecture_t)sim_nvml_gpu(gpu)->architecture;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(major != NULL && minor != NULL);
    *major = (int)sim_nvml_gpu(gpu)->compute_major;
    *minor = (int)sim_nvml_gpu(gpu)->compute_minor;
    return NVML_SUCCESS;
}

/* Source: the CUDA programming guide's table of FP32 units of an SM. */
static unsigned cores_per_sm(const struct sim_gpu *gpu) {
    bool has_64 = (gpu->compute_major == 7 || gpu->compute_major == 6 || gpu->compute_major == 8) &&
                  gpu->compute_minor == 0;
    return has_64 || (gpu->compute_major == 7 && gpu->compute_minor == 5) ? 64 : 128;
}

nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *count) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(count != NULL);
    *count = (unsigned)sim_nvml_gpu(gpu)->sm_count * cores_per_sm(sim_nvml_gpu(gpu));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned int *bits) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(bits != NULL);
    *bits = (unsigned)sim_nvml_gpu(gpu)->memory_bus_bits;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned int *is_multi_gpu) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(is_multi_gpu != NULL);
    *is_multi_gpu = 0;
    return NVML_SUCCESS;
}

/* NVIDIA derives it from the bus too. */
nvmlReturn_t nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned int *board) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(board != NULL);
    *board = (gpu + 1) << 8;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length) {
    NVML_ENTER_DEVICE(device, gpu);
    return sim_nvml_copy(version, length, "00.00.00.00.00");
}

nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, nvmlGpuVirtualizationMode_t *mode) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(mode != NULL);
    *mode = NVML_GPU_VIRTUALIZATION_MODE_NONE;
    return NVML_SUCCESS;
}
