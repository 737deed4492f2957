/* MIG: a GPU with MIG enabled and the instances that it is divided into, each of which is a device with a
 * handle of its own. MIG cannot be switched here: gpus.conf has its state. */
#include "nvml/nvml_state.h"

/* As many instances as the largest division has. */
#define MOST_INSTANCES 7u

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(current != NULL && pending != NULL);
    if (sim_nvml_gpu(gpu)->mig == 0) return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = NVML_DEVICE_MIG_ENABLE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(is_mig != NULL);
    *is_mig = sim_is_instance(&sim_nvml.config, gpu);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(count != NULL);
    *count = sim_nvml_gpu(gpu)->mig == 0 ? 0 : MOST_INSTANCES;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                 nvmlDevice_t *instance) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(instance != NULL);
    if (sim_nvml_gpu(gpu)->mig == 0) return NVML_ERROR_NOT_SUPPORTED;
    NVML_REQUIRE(index < MOST_INSTANCES);
    for (unsigned i = sim_nvml.config.gpu_count; i < sim_nvml.config.device_count; i++) {
        if (sim_nvml_gpu(i)->parent != gpu || index-- > 0) continue;
        *instance = sim_nvml_handle(i);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t instance, nvmlDevice_t *device) {
    NVML_ENTER_DEVICE(instance, index);
    NVML_REQUIRE(device != NULL);
    if (!sim_is_instance(&sim_nvml.config, index)) return NVML_ERROR_NOT_SUPPORTED;
    *device = sim_nvml_handle((unsigned)sim_nvml_gpu(index)->parent);
    return NVML_SUCCESS;
}

static nvmlReturn_t give_id(nvmlDevice_t device, unsigned int *id,
                            uint64_t of_instance(const struct sim_gpu *)) {
    NVML_ENTER_DEVICE(device, index);
    NVML_REQUIRE(id != NULL);
    if (!sim_is_instance(&sim_nvml.config, index)) return NVML_ERROR_NOT_SUPPORTED;
    *id = (unsigned)of_instance(sim_nvml_gpu(index));
    return NVML_SUCCESS;
}

static uint64_t gpu_instance(const struct sim_gpu *instance) {
    return instance->gpu_instance;
}

static uint64_t compute_instance(const struct sim_gpu *instance) {
    return instance->compute_instance;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id) {
    return give_id(device, id, gpu_instance);
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id) {
    return give_id(device, id, compute_instance);
}
