/* Clocks, temperature and power, as a load of this size would show them. A simulated GPU has no sensors: idle
 * and full load are typical of the product's class, and what lies between is linear in utilisation. */
#include "nvml/nvml_state.h"

#define IDLE_CELSIUS       32u
#define LOADED_CELSIUS     68u
#define SLOWDOWN_CELSIUS   90u
#define SHUTDOWN_CELSIUS   95u
#define IDLE_CLOCK_MHZ     210u
#define IDLE_POWER_DIVISOR 12u /* of the limit */
#define PERCENT            100u
#define REASON_IDLE        1ull /* nvmlClocksEventReasonGpuIdle */

static unsigned between(unsigned idle, unsigned loaded, unsigned percent) {
    return idle + (loaded - idle) * percent / PERCENT;
}

static unsigned max_clock_mhz(unsigned gpu, nvmlClockType_t type) {
    const struct sim_gpu *found = sim_nvml_gpu(gpu);
    return (unsigned)((type == NVML_CLOCK_MEM ? found->memory_clock_khz : found->clock_khz) / 1000);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(mhz != NULL && type < NVML_CLOCK_COUNT);
    *mhz = max_clock_mhz(gpu, type);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, nvmlClockType_t type,
                                                unsigned int *mhz) {
    return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz) {
    return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t type,
                                                   unsigned int *mhz) {
    return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

/* An idle GPU clocks down, and goes to full clocks with the first kernel. */
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(mhz != NULL && type < NVML_CLOCK_COUNT);
    *mhz = sim_nvml_busy_percent(gpu) > 0 ? max_clock_mhz(gpu, type) : IDLE_CLOCK_MHZ;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id,
                                unsigned int *mhz) {
    NVML_REQUIRE(id < NVML_CLOCK_ID_COUNT);
    return id == NVML_CLOCK_ID_CURRENT ? nvmlDeviceGetClockInfo(device, type, mhz)
                                       : nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

/* One memory clock, and one SM clock for it. */
static nvmlReturn_t give_one(unsigned clock_mhz, unsigned int *count, unsigned int *clocks_mhz) {
    NVML_REQUIRE(count != NULL);
    unsigned room = *count;
    *count = 1;
    if (clocks_mhz == NULL || room == 0) return NVML_ERROR_INSUFFICIENT_SIZE;
    clocks_mhz[0] = clock_mhz;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count,
                                                unsigned int *clocks_mhz) {
    NVML_ENTER_DEVICE(device, gpu);
    return give_one(max_clock_mhz(gpu, NVML_CLOCK_MEM), count, clocks_mhz);
}

nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory_clock_mhz,
                                                  unsigned int *count, unsigned int *clocks_mhz) {
    NVML_ENTER_DEVICE(device, gpu);
    if (memory_clock_mhz != max_clock_mhz(gpu, NVML_CLOCK_MEM)) return NVML_ERROR_NOT_FOUND;
    return give_one(max_clock_mhz(gpu, NVML_CLOCK_GRAPHICS), count, clocks_mhz);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(reasons != NULL);
    *reasons = sim_nvml_busy_percent(gpu) > 0 ? 0 : REASON_IDLE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(reasons != NULL);
    *reasons = REASON_IDLE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) {
    return nvmlDeviceGetSupportedClocksEventReasons(device, reasons);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor,
                                      unsigned int *celsius) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(celsius != NULL && sensor == NVML_TEMPERATURE_GPU);
    *celsius = between(IDLE_CELSIUS, LOADED_CELSIUS, sim_nvml_busy_percent(gpu));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature) {
    NVML_REQUIRE(temperature != NULL);
    if (temperature->version != NVML_STRUCT_VERSION(nvmlTemperature_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    unsigned int celsius = 0;
    nvmlReturn_t result = nvmlDeviceGetTemperature(device, temperature->sensorType, &celsius);
    temperature->temperature = (int)celsius;
    return result;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t which,
                                               unsigned int *celsius) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(celsius != NULL && which < NVML_TEMPERATURE_THRESHOLD_COUNT);
    switch (which) {
    case NVML_TEMPERATURE_THRESHOLD_SHUTDOWN:
        *celsius = SHUTDOWN_CELSIUS;
        return NVML_SUCCESS;
    case NVML_TEMPERATURE_THRESHOLD_SLOWDOWN:
    case NVML_TEMPERATURE_THRESHOLD_GPU_MAX:
        *celsius = SLOWDOWN_CELSIUS;
        return NVML_SUCCESS;
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

/* P0 under load, P8 idle. */
nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t *state) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(state != NULL);
    *state = sim_nvml_busy_percent(gpu) > 0 ? NVML_PSTATE_0 : NVML_PSTATE_8;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, nvmlPstates_t *state) {
    return nvmlDeviceGetPerformanceState(device, state);
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(milliwatts != NULL);
    unsigned limit = (unsigned)sim_nvml_gpu(gpu)->power_milliwatts;
    *milliwatts = between(limit / IDLE_POWER_DIVISOR, limit, sim_nvml_busy_percent(gpu));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *milliwatts) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(milliwatts != NULL);
    NVML_REQUIRE_OWN_MEMORY(gpu);
    *milliwatts = (unsigned)sim_nvml_gpu(gpu)->power_milliwatts;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned int *milliwatts) {
    return nvmlDeviceGetPowerManagementLimit(device, milliwatts);
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatts) {
    return nvmlDeviceGetPowerManagementLimit(device, milliwatts);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *least_milliwatts,
                                                          unsigned int *most_milliwatts) {
    NVML_REQUIRE(least_milliwatts != NULL);
    *least_milliwatts = 0;
    nvmlReturn_t result = nvmlDeviceGetPowerManagementLimit(device, most_milliwatts);
    if (result == NVML_SUCCESS) *least_milliwatts = *most_milliwatts;
    return result;
}

nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, nvmlEnableState_t *mode) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(mode != NULL);
    *mode = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerSource(nvmlDevice_t device, nvmlPowerSource_t *source) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(source != NULL);
    *source = NVML_POWER_SOURCE_AC;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNumFans(nvmlDevice_t device, unsigned int *count) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(count != NULL);
    *count = 0;
    return NVML_SUCCESS;
}
