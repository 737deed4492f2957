/* Begin and end of NVML: the GPUs are read when the first client begins, and anew after the last has ended.
 */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "nvml/nvml_state.h"

struct sim_nvml sim_nvml;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* A machine without simulated GPUs behaves like one without a loaded driver. */
static nvmlReturn_t read_gpus(void) {
    char problem[512];
    if (!sim_state_directory(sim_nvml.directory)) return NVML_ERROR_DRIVER_NOT_LOADED;
    if (!sim_config_read(sim_nvml.directory, &sim_nvml.config, problem, sizeof(problem)))
        return NVML_ERROR_DRIVER_NOT_LOADED;
    sim_nvml.activity = sim_activity_map(sim_nvml.directory);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    NVML_REQUIRE((flags & ~(unsigned)(NVML_INIT_FLAG_NO_GPUS | NVML_INIT_FLAG_NO_ATTACH)) == 0);
    pthread_mutex_lock(&mutex);
    unsigned references = sim_nvml_references();
    nvmlReturn_t result = references == 0 ? read_gpus() : NVML_SUCCESS;
    if (result == NVML_SUCCESS) __atomic_store_n(&sim_nvml.references, references + 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&mutex);
    return result;
}

nvmlReturn_t nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit(void) {
    return nvmlInitWithFlags(0);
}

static void forget_gpus(void) {
    if (sim_nvml.activity != NULL) munmap(sim_nvml.activity, sizeof(*sim_nvml.activity));
    sim_nvml.activity = NULL;
}

nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&mutex);
    unsigned references = sim_nvml_references();
    if (references > 0) __atomic_store_n(&sim_nvml.references, references - 1, __ATOMIC_RELEASE);
    if (references == 1) forget_gpus();
    pthread_mutex_unlock(&mutex);
    return references > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

unsigned sim_nvml_index(nvmlDevice_t device) {
    uintptr_t offset = (uintptr_t)device - (uintptr_t)sim_nvml.config.gpu;
    return offset % sizeof(struct sim_gpu) == 0 ? (unsigned)(offset / sizeof(struct sim_gpu)) : SIM_MAX_GPUS;
}

nvmlReturn_t sim_nvml_copy(char *target, unsigned target_bytes, const char *text) {
    NVML_REQUIRE(target != NULL);
    size_t needed_bytes = strlen(text) + 1;
    if (target_bytes < needed_bytes) return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(target, text, needed_bytes);
    return NVML_SUCCESS;
}

unsigned long long sim_nvml_now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000u + (unsigned long long)now.tv_nsec / 1000u;
}
