/* How busy a GPU is, as a whole and by process, from the device time that the driver accounts. */
#include <pthread.h>
#include <string.h>

#include "nvml/nvml_state.h"
#include "visible_pid.h"

#define SAMPLING_PERIOD_US 166667u
#define NS_PER_US          1000u

unsigned sim_nvml_busy_percent(unsigned gpu) {
    if (sim_nvml.activity == NULL) return 0;
    uint64_t now_ns = sim_now_ns();
    struct sim_activity_gpu *activity = &sim_nvml.activity->gpu[gpu];
    sim_activity_sample(activity, now_ns);
    return sim_activity_busy_percent(activity, now_ns);
}

/* Running kernels touch memory all the time: memory utilisation is the same as the GPU's. */
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(utilization != NULL);
    NVML_REQUIRE_NO_MIG(gpu);
    unsigned percent = sim_nvml_busy_percent(gpu);
    *utilization = (nvmlUtilization_t){.gpu = percent, .memory = percent};
    return NVML_SUCCESS;
}

static nvmlReturn_t give_idle_engine(nvmlDevice_t device, unsigned int *percent, unsigned int *period_us) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(percent != NULL && period_us != NULL);
    *percent = 0;
    *period_us = SAMPLING_PERIOD_US;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *percent,
                                             unsigned int *period_us) {
    return give_idle_engine(device, percent, period_us);
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *percent,
                                             unsigned int *period_us) {
    return give_idle_engine(device, percent, period_us);
}

nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned int *sessions,
                                       unsigned int *frames_per_second, unsigned int *latency_us) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(sessions != NULL && frames_per_second != NULL && latency_us != NULL);
    *sessions = *frames_per_second = *latency_us = 0;
    return NVML_SUCCESS;
}

/* Of one process since the last question about its GPU. */
struct history {
    uint64_t at_ns;
    uint64_t used_ns[PGPU_MAX_SLOTS];
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct history histories[SIM_MAX_GPUS];

static bool has_queue(unsigned gpu, unsigned slot, uint64_t now_ns) {
    return __atomic_load_n(&sim_nvml.activity->gpu[gpu].slot[slot].until_ns, __ATOMIC_RELAXED) > now_ns;
}

/* The first call has nothing to compare with: the processes that have work now share the busy time. */
static unsigned first_percent(unsigned gpu, unsigned slot, uint64_t now_ns) {
    unsigned sharing = 0;
    if (!has_queue(gpu, slot, now_ns)) return 0;
    for (unsigned other = 0; other < PGPU_MAX_SLOTS; other++)
        sharing += has_queue(gpu, other, now_ns);
    return sim_nvml_busy_percent(gpu) / (sharing > 0 ? sharing : 1);
}

static unsigned share_percent(struct history *history, unsigned gpu, unsigned slot, uint64_t now_ns) {
    uint64_t used_ns = sim_activity_slot_busy_ns(&sim_nvml.activity->gpu[gpu].slot[slot], now_ns);
    uint64_t before_ns = history->used_ns[slot];
    history->used_ns[slot] = used_ns;
    if (history->at_ns == 0) return first_percent(gpu, slot, now_ns);
    if (now_ns <= history->at_ns || used_ns <= before_ns) return 0;
    uint64_t percent = (used_ns - before_ns) * 100 / (now_ns - history->at_ns);
    return percent > 100 ? 100 : (unsigned)percent;
}

static unsigned collect(unsigned gpu, const struct pgpu_reader_view *view,
                        nvmlProcessUtilizationSample_t *samples, unsigned room) {
    struct history *history = &histories[gpu];
    uint64_t now_ns = sim_now_ns();
    unsigned count = 0;
    for (unsigned i = 0; i < view->slot_count; i++) {
        const struct pgpu_reader_slot *slot = &view->slot[i];
        unsigned pid = slot->is_alive && slot->used_bytes[gpu] > 0 ? pgpu_visible_pid(slot) : 0;
        if (pid == 0) continue;
        unsigned percent = share_percent(history, gpu, slot->slot, now_ns);
        if (count < room)
            samples[count] = (nvmlProcessUtilizationSample_t){
                .pid = pid, .timeStamp = sim_nvml_now_us(), .smUtil = percent, .memUtil = percent};
        count++;
    }
    history->at_ns = now_ns;
    return count;
}

static unsigned count_processes(unsigned gpu, const struct pgpu_reader_view *view) {
    unsigned count = 0;
    for (unsigned i = 0; i < view->slot_count; i++)
        if (view->slot[i].is_alive && view->slot[i].used_bytes[gpu] > 0) count++;
    return count;
}

/* As NVIDIA's: called without a buffer it returns the size that is needed; without any process it returns
 * NVML_ERROR_NO_DATA. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long last_seen_us) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(count != NULL);
    NVML_REQUIRE_NO_MIG(gpu);
    if (sim_nvml.activity == NULL) return NVML_ERROR_NOT_SUPPORTED;
    struct pgpu_reader_view *view = sim_nvml_new_view();
    if (view == NULL) return NVML_ERROR_UNKNOWN;
    unsigned room = samples != NULL ? *count : 0;
    pthread_mutex_lock(&mutex);
    *count = samples == NULL ? count_processes(gpu, view) : collect(gpu, view, samples, room);
    pthread_mutex_unlock(&mutex);
    sim_nvml_delete_view(view);
    if (*count > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    return *count == 0 || last_seen_us > sim_nvml_now_us() ? NVML_ERROR_NO_DATA : NVML_SUCCESS;
}

/* One sample, of now. */
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type,
                                  unsigned long long last_seen_us, nvmlValueType_t *value_type,
                                  unsigned int *count, nvmlSample_t *samples) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(value_type != NULL && count != NULL && type < NVML_SAMPLINGTYPE_COUNT);
    NVML_REQUIRE_NO_MIG(gpu);
    if (type != NVML_GPU_UTILIZATION_SAMPLES && type != NVML_MEMORY_UTILIZATION_SAMPLES)
        return NVML_ERROR_NOT_SUPPORTED;
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    unsigned long long now_us = sim_nvml_now_us();
    if (last_seen_us > now_us) return NVML_ERROR_NOT_FOUND;
    unsigned room = *count;
    *count = 1;
    if (samples == NULL) return NVML_SUCCESS;
    NVML_REQUIRE(room > 0);
    samples[0] = (nvmlSample_t){.timeStamp = now_us, .sampleValue.uiVal = sim_nvml_busy_percent(gpu)};
    return NVML_SUCCESS;
}
