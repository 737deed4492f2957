#include "nvml/nvml_devices.h"

#include <stddef.h>

#define MOST_DEVICES 64

struct device {
    nvmlDevice_t handle; /* NULL: not found */
    nvmlDevice_t whole;  /* the GPU itself, or the GPU of the MIG instance */
    unsigned real_index; /* of the whole GPU */
};

static struct device of_gpu[PGPU_MAX_GPUS]; /* by index in the limit file */
static unsigned found_count;                /* 0: nothing is hidden */

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* `GPU-` or `MIG-` and 32 digits with dashes among them. */
static bool read_uuid(const char *text, uint8_t uuid[16]) {
    unsigned digits = 0;
    for (const char *at = text + 4; *at != '\0'; at++) {
        int value = hex_digit(*at);
        if (*at == '-') continue;
        if (value < 0 || digits == 32) return false;
        uuid[digits / 2] = (uint8_t)(digits % 2 == 0 ? value << 4 : uuid[digits / 2] | value);
        digits++;
    }
    return digits == 32;
}

static int lease_index_of(nvmlDevice_t handle) {
    char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
    uint8_t uuid[16];
    if (PGPU_NVML_REAL(nvmlDeviceGetUUID)(handle, text, sizeof(text)) != NVML_SUCCESS) return PGPU_NO_GPU;
    if ((text[0] != 'G' && text[0] != 'M') || !read_uuid(text, uuid)) return PGPU_NO_GPU;
    return pgpu_limit_index_of(pgpu_nvml_limit, uuid);
}

static unsigned read_device(nvmlDevice_t device, nvmlDevice_t whole, unsigned index) {
    int gpu = lease_index_of(device);
    if (gpu == PGPU_NO_GPU) return 0;
    __atomic_store_n(&of_gpu[gpu].real_index, index, __ATOMIC_RELAXED);
    __atomic_store_n(&of_gpu[gpu].whole, whole, __ATOMIC_RELAXED);
    __atomic_store_n(&of_gpu[gpu].handle, device, __ATOMIC_RELEASE);
    return 1;
}

static unsigned read_instances(nvmlDevice_t whole, unsigned index) {
    unsigned count = 0, found = 0;
    if (PGPU_NVML_REAL(nvmlDeviceGetMaxMigDeviceCount)(whole, &count) != NVML_SUCCESS) return 0;
    for (unsigned place = 0; place < count; place++) {
        nvmlDevice_t instance;
        if (PGPU_NVML_REAL(nvmlDeviceGetMigDeviceHandleByIndex)(whole, place, &instance) == NVML_SUCCESS)
            found += read_device(instance, whole, index);
    }
    return found;
}

/* Threads that initialise together store the same values. */
void pgpu_nvml_find_devices(void) {
    unsigned count = 0, found = 0;
    if (PGPU_NVML_REAL(nvmlDeviceGetCount_v2)(&count) != NVML_SUCCESS) return;
    for (unsigned index = 0; index < count; index++) {
        nvmlDevice_t whole;
        if (PGPU_NVML_REAL(nvmlDeviceGetHandleByIndex_v2)(index, &whole) == NVML_SUCCESS)
            found += read_device(whole, whole, index) + read_instances(whole, index);
    }
    __atomic_store_n(&found_count, found, __ATOMIC_RELEASE);
}

static nvmlDevice_t handle_of(int gpu) {
    return __atomic_load_n(&of_gpu[gpu].handle, __ATOMIC_ACQUIRE);
}

/* NULL where nothing is found. */
static nvmlDevice_t whole_of(int gpu) {
    return handle_of(gpu) == NULL ? NULL : __atomic_load_n(&of_gpu[gpu].whole, __ATOMIC_RELAXED);
}

int pgpu_nvml_gpu_of(nvmlDevice_t device) {
    for (int gpu = 0; device != NULL && gpu < (int)PGPU_MAX_GPUS; gpu++)
        if (handle_of(gpu) == device || whole_of(gpu) == device) return gpu;
    return PGPU_NO_GPU;
}

static unsigned shown_count(void) {
    return __atomic_load_n(&found_count, __ATOMIC_ACQUIRE);
}

static bool is_hidden(nvmlDevice_t device) {
    return shown_count() > 0 && pgpu_nvml_gpu_of(device) == PGPU_NO_GPU;
}

/* The position of a lease's GPU among those that were found. */
static unsigned shown_index_of(int gpu) {
    unsigned index = 0;
    for (int before = 0; before < gpu; before++)
        if (handle_of(before) != NULL) index++;
    return index;
}

static unsigned real_index_of(unsigned shown_index) {
    for (int gpu = 0; gpu < (int)PGPU_MAX_GPUS; gpu++)
        if (handle_of(gpu) != NULL && shown_index_of(gpu) == shown_index)
            return __atomic_load_n(&of_gpu[gpu].real_index, __ATOMIC_RELAXED);
    return UINT32_MAX;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    nvmlReturn_t result = PGPU_NVML_REAL(nvmlDeviceGetCount_v2)(count);
    if (result == NVML_SUCCESS && shown_count() > 0) *count = shown_count();
    return result;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) {
    nvmlReturn_t result = PGPU_NVML_REAL(nvmlDeviceGetCount)(count);
    if (result == NVML_SUCCESS && shown_count() > 0) *count = shown_count();
    return result;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    unsigned real_index = shown_count() > 0 ? real_index_of(index) : index;
    return PGPU_NVML_REAL(nvmlDeviceGetHandleByIndex_v2)(real_index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
    unsigned real_index = shown_count() > 0 ? real_index_of(index) : index;
    return PGPU_NVML_REAL(nvmlDeviceGetHandleByIndex)(real_index, device);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    nvmlReturn_t result = PGPU_NVML_REAL(nvmlDeviceGetIndex)(device, index);
    int gpu = pgpu_nvml_gpu_of(device);
    if (result == NVML_SUCCESS && gpu != PGPU_NO_GPU && whole_of(gpu) == device) *index = shown_index_of(gpu);
    return result;
}

/* A GPU that is not in the lease is not found. */
static nvmlReturn_t hide(nvmlReturn_t result, nvmlDevice_t *device) {
    if (result != NVML_SUCCESS || !is_hidden(*device)) return result;
    *device = NULL;
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    return hide(PGPU_NVML_REAL(nvmlDeviceGetHandleByUUID)(uuid, device), device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device) {
    return hide(PGPU_NVML_REAL(nvmlDeviceGetHandleByUUIDV)(uuid, device), device);
}

/* Clients query every index below the count and skip those that return "not found". */
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                 nvmlDevice_t *instance) {
    return hide(PGPU_NVML_REAL(nvmlDeviceGetMigDeviceHandleByIndex)(device, index, instance), instance);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device) {
    return hide(PGPU_NVML_REAL(nvmlDeviceGetHandleBySerial)(serial, device), device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device) {
    return hide(PGPU_NVML_REAL(nvmlDeviceGetHandleByPciBusId)(bus_id, device), device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    return hide(PGPU_NVML_REAL(nvmlDeviceGetHandleByPciBusId_v2)(bus_id, device), device);
}

/* Give the client those of `all` that are not hidden. `count` is its room, then how many there are. */
static nvmlReturn_t give_shown(const nvmlDevice_t *all, unsigned all_count, unsigned int *count,
                               nvmlDevice_t *devices) {
    unsigned room = devices == NULL ? 0 : *count, shown = 0;
    for (unsigned i = 0; i < all_count; i++) {
        if (is_hidden(all[i])) continue;
        if (shown < room) devices[shown] = all[i];
        shown++;
    }
    *count = shown;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level,
                                              unsigned int *count, nvmlDevice_t *devices) {
    nvmlDevice_t all[MOST_DEVICES];
    unsigned all_count = MOST_DEVICES;
    nvmlReturn_t result = PGPU_NVML_REAL(nvmlDeviceGetTopologyNearestGpus)(
        device, level, count == NULL ? NULL : &all_count, all);
    return result == NVML_SUCCESS ? give_shown(all, all_count, count, devices) : result;
}

nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpu, unsigned int *count, nvmlDevice_t *devices) {
    nvmlDevice_t all[MOST_DEVICES];
    unsigned all_count = MOST_DEVICES;
    nvmlReturn_t result =
        PGPU_NVML_REAL(nvmlSystemGetTopologyGpuSet)(cpu, count == NULL ? NULL : &all_count, all);
    return result == NVML_SUCCESS ? give_shown(all, all_count, count, devices) : result;
}
