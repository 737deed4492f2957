/* Features that a simulated GPU does not have: ECC, persistence, accounting and the like. Each answers as a
 * product without the feature does. */
#include <string.h>

#include "nvml/nvml_state.h"

static nvmlReturn_t give_state(nvmlDevice_t device, nvmlEnableState_t *state, nvmlEnableState_t value) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(state != NULL);
    *state = value;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode) {
    return give_state(device, mode, NVML_FEATURE_ENABLED);
}

nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, nvmlEnableState_t *mode) {
    return give_state(device, mode, NVML_FEATURE_DISABLED);
}

nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t *mode) {
    return give_state(device, mode, NVML_FEATURE_DISABLED);
}

nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, nvmlEnableState_t *mode) {
    return give_state(device, mode, NVML_FEATURE_DISABLED);
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(mode != NULL);
    *mode = NVML_COMPUTEMODE_DEFAULT;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(types != NULL);
    *types = 0;
    return NVML_SUCCESS;
}

/* Each field has its own result, so a client that queries many uses those that succeed. */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(values != NULL && count > 0);
    for (int i = 0; i < count; i++) {
        values[i].timestamp = (long long)sim_nvml_now_us();
        values[i].latencyUsec = 0;
        values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}
