/* How GPUs and processors lie to each other: every simulated GPU has a slot of its own on one host bridge,
 * without NVLink, next to every processor. */
#include <string.h>
#include <unistd.h>

#include "nvml/nvml_state.h"

#define BITS_PER_WORD (8u * sizeof(unsigned long))

nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t device, nvmlDevice_t other, int *is_same) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_ENTER_DEVICE(other, other_gpu);
    NVML_REQUIRE(is_same != NULL);
    *is_same = gpu == other_gpu;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other,
                                                 nvmlGpuTopologyLevel_t *level) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_ENTER_DEVICE(other, other_gpu);
    NVML_REQUIRE(level != NULL);
    *level = gpu == other_gpu ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_HOSTBRIDGE;
    return NVML_SUCCESS;
}

/* Fill `devices` with all GPUs but `except`. */
static nvmlReturn_t give_gpus(unsigned except, unsigned int *count, nvmlDevice_t *devices) {
    unsigned room = *count, found = 0;
    for (unsigned gpu = 0; gpu < sim_nvml.config.gpu_count; gpu++) {
        if (gpu == except) continue;
        if (devices != NULL && found < room) devices[found] = sim_nvml_handle(gpu);
        found++;
    }
    *count = found;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level,
                                              unsigned int *count, nvmlDevice_t *devices) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(count != NULL);
    if (level == NVML_TOPOLOGY_HOSTBRIDGE) return give_gpus(gpu, count, devices);
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpu, unsigned int *count, nvmlDevice_t *devices) {
    (void)cpu;
    NVML_ENTER();
    NVML_REQUIRE(count != NULL);
    return give_gpus(SIM_MAX_GPUS, count, devices);
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, nvmlGpuP2PCapsIndex_t index,
                                    nvmlGpuP2PStatus_t *status) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_ENTER_DEVICE(other, other_gpu);
    NVML_REQUIRE(status != NULL && index < NVML_P2P_CAPS_INDEX_UNKNOWN);
    *status = gpu == other_gpu ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(set != NULL && words > 0);
    memset(set, 0, words * sizeof(*set));
    long processors = sysconf(_SC_NPROCESSORS_CONF);
    for (unsigned i = 0; (long)i < processors && i < words * BITS_PER_WORD; i++)
        set[i / BITS_PER_WORD] |= 1ul << i % BITS_PER_WORD;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                                 nvmlAffinityScope_t scope) {
    NVML_REQUIRE(scope <= NVML_AFFINITY_SCOPE_SOCKET);
    return nvmlDeviceGetCpuAffinity(device, words, set);
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                         nvmlAffinityScope_t scope) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(set != NULL && words > 0 && scope <= NVML_AFFINITY_SCOPE_SOCKET);
    memset(set, 0, words * sizeof(*set));
    set[0] = 1;
    return NVML_SUCCESS;
}
