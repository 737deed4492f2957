/* nvml-threads LIBRARY: threads that initialise, query and shut down NVML all at once; 1 if one of them got a
 * wrong answer. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "nvml_abi.h"

#define THREADS 8
#define ROUNDS  50

static struct {
    __typeof__(nvmlInit_v2) *init;
    __typeof__(nvmlShutdown) *end;
    __typeof__(nvmlDeviceGetCount_v2) *count;
    __typeof__(nvmlDeviceGetHandleByIndex_v2) *handle;
    __typeof__(nvmlDeviceGetMemoryInfo) *memory;
    __typeof__(nvmlDeviceGetUtilizationRates) *utilisation;
} nvml;

static int ask(unsigned count) {
    nvmlDevice_t device;
    nvmlMemory_t memory;
    nvmlUtilization_t utilisation;
    for (unsigned index = 0; index < count; index++) {
        if (nvml.handle(index, &device) != NVML_SUCCESS) return 1;
        if (nvml.memory(device, &memory) != NVML_SUCCESS || memory.used + memory.free != memory.total)
            return 1;
        if (nvml.utilisation(device, &utilisation) != NVML_SUCCESS || utilisation.gpu > 100) return 1;
    }
    return count == 0;
}

static void *work(void *failed) {
    for (int round = 0; round < ROUNDS; round++) {
        unsigned count = 0;
        int is_wrong = nvml.init() != NVML_SUCCESS || nvml.count(&count) != NVML_SUCCESS || ask(count) != 0;
        if (nvml.end() != NVML_SUCCESS || is_wrong) __atomic_store_n((int *)failed, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

int main(int argc, char **argv) {
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (library == NULL) return fprintf(stderr, "%s\n", dlerror()), 2;
    *(void **)&nvml.init = dlsym(library, "nvmlInit_v2");
    *(void **)&nvml.end = dlsym(library, "nvmlShutdown");
    *(void **)&nvml.count = dlsym(library, "nvmlDeviceGetCount_v2");
    *(void **)&nvml.handle = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&nvml.memory = dlsym(library, "nvmlDeviceGetMemoryInfo");
    *(void **)&nvml.utilisation = dlsym(library, "nvmlDeviceGetUtilizationRates");
    pthread_t threads[THREADS];
    int failed = 0;
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, &failed);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return failed;
}
