/* Which GPUs there are, and how a client finds one: by index, UUID or PCI bus id. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "nvml/nvml_state.h"

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    NVML_ENTER();
    NVML_REQUIRE(count != NULL);
    *count = sim_nvml.config.gpu_count;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) {
    return nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    NVML_ENTER();
    NVML_REQUIRE(device != NULL && index < sim_nvml.config.gpu_count);
    *device = sim_nvml_handle(index);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static nvmlReturn_t give(unsigned gpu, nvmlDevice_t *device) {
    if (gpu >= sim_nvml.config.device_count) return NVML_ERROR_NOT_FOUND;
    *device = sim_nvml_handle(gpu);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    NVML_ENTER();
    NVML_REQUIRE(uuid != NULL && device != NULL);
    unsigned gpu = 0;
    while (gpu < sim_nvml.config.device_count && strcasecmp(uuid, sim_nvml_gpu(gpu)->uuid_text) != 0)
        gpu++;
    return give(gpu, device);
}

static nvmlReturn_t find_by_bytes(const unsigned char uuid[16], nvmlDevice_t *device) {
    unsigned gpu = 0;
    while (gpu < sim_nvml.config.device_count && memcmp(uuid, sim_nvml_gpu(gpu)->uuid, 16) != 0)
        gpu++;
    return give(gpu, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device) {
    NVML_ENTER();
    NVML_REQUIRE(uuid != NULL && device != NULL);
    if (uuid->version != NVML_STRUCT_VERSION(nvmlUUID_v1_t, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (uuid->type == NVML_UUID_TYPE_BINARY) return find_by_bytes(uuid->value.bytes, device);
    NVML_REQUIRE(uuid->type == NVML_UUID_TYPE_ASCII &&
                 memchr(uuid->value.str, 0, sizeof(uuid->value.str)) != NULL);
    return nvmlDeviceGetHandleByUUID(uuid->value.str, device);
}

/* Clients write the domain with four digits or with eight. */
static bool is_same_bus(const char *text, const char *bus_id) {
    unsigned domain, bus, slot, other_domain, other_bus, other_slot;
    if (sscanf(text, "%x:%x:%x.", &domain, &bus, &slot) != 3) return false;
    if (sscanf(bus_id, "%x:%x:%x.", &other_domain, &other_bus, &other_slot) != 3) return false;
    return domain == other_domain && bus == other_bus && slot == other_slot;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    NVML_ENTER();
    NVML_REQUIRE(bus_id != NULL && device != NULL);
    unsigned gpu = 0;
    while (gpu < sim_nvml.config.gpu_count && !is_same_bus(bus_id, sim_nvml_gpu(gpu)->pci_bus_id))
        gpu++;
    return gpu == sim_nvml.config.gpu_count ? NVML_ERROR_NOT_FOUND : give(gpu, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device) {
    NVML_ENTER();
    NVML_REQUIRE(serial != NULL && device != NULL);
    return NVML_ERROR_NOT_FOUND;
}

/* Of an instance: among those of its GPU. */
static unsigned shown_index(unsigned gpu) {
    unsigned index = 0;
    for (unsigned i = sim_nvml.config.gpu_count; i < gpu; i++)
        index += sim_nvml_gpu(i)->parent == sim_nvml_gpu(gpu)->parent;
    return sim_is_instance(&sim_nvml.config, gpu) ? index : gpu;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(index != NULL);
    *index = shown_index(gpu);
    return NVML_SUCCESS;
}

/* The N of /dev/nvidiaN. */
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor) {
    return nvmlDeviceGetIndex(device, minor);
}
