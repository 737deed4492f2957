/* nvml-structures LIBRARY: call every version of the process lists and of the other structures whose size
 * differs, with exactly as much room as that version has, and fail if a byte behind it changed. Prints pid
 * and bytes of each list. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "nvml_abi.h"

#define ROOM   64
#define CANARY 0x5a

typedef nvmlReturn_t (*list_fn)(nvmlDevice_t, unsigned int *, void *);
typedef nvmlReturn_t (*fill_fn)(nvmlDevice_t, void *);

static void *library;
static nvmlDevice_t device;

static const struct {
    const char *name;
    size_t entry_bytes;
} lists[] = {
    {"nvmlDeviceGetComputeRunningProcesses", 16},       {"nvmlDeviceGetComputeRunningProcesses_v2", 24},
    {"nvmlDeviceGetComputeRunningProcesses_v3", 24},    {"nvmlDeviceGetGraphicsRunningProcesses", 16},
    {"nvmlDeviceGetGraphicsRunningProcesses_v2", 24},   {"nvmlDeviceGetGraphicsRunningProcesses_v3", 24},
    {"nvmlDeviceGetMPSComputeRunningProcesses", 16},    {"nvmlDeviceGetMPSComputeRunningProcesses_v2", 24},
    {"nvmlDeviceGetMPSComputeRunningProcesses_v3", 24},
};

static const struct {
    const char *name;
    size_t bytes;
    unsigned version;
} structures[] = {
    {"nvmlDeviceGetMemoryInfo", 24, 0},     {"nvmlDeviceGetMemoryInfo_v2", 40, 2},
    {"nvmlDeviceGetPciInfo", 52, 0},        {"nvmlDeviceGetPciInfo_v2", 52, 0},
    {"nvmlDeviceGetPciInfo_v3", 68, 0},     {"nvmlDeviceGetPciInfoExt", 64, 1},
    {"nvmlDeviceGetBAR1MemoryInfo", 24, 0}, {"nvmlDeviceGetUtilizationRates", 8, 0},
};

static int is_canary(const unsigned char *from, const unsigned char *to) {
    while (from < to && *from == CANARY)
        from++;
    return from == to;
}

static void print_entry(const unsigned char *entry) {
    nvmlProcessInfo_v1_t info;
    memcpy(&info, entry, sizeof(info));
    printf(" %u:%llu", info.pid, info.usedGpuMemory);
}

static int check_list(const char *name, size_t entry_bytes) {
    unsigned char buffer[ROOM * 24 + 64];
    list_fn list = (list_fn)dlsym(library, name);
    unsigned int needed = 0, count;
    nvmlReturn_t result = list(device, &needed, NULL);
    if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE)
        return fprintf(stderr, "%s: %d\n", name, result);
    memset(buffer, CANARY, sizeof(buffer));
    count = needed;
    result = list(device, &count, needed == 0 ? NULL : buffer);
    if (result != NVML_SUCCESS || count != needed)
        return fprintf(stderr, "%s: %d, %u\n", name, result, count);
    printf("%s", name);
    for (unsigned i = 0; i < count; i++)
        print_entry(buffer + i * entry_bytes);
    printf("\n");
    return is_canary(buffer + count * entry_bytes, buffer + sizeof(buffer))
               ? 0
               : fprintf(stderr, "%s: overrun\n", name);
}

/* With room for one entry less it must return that error and write no further. */
static int check_short_list(const char *name, size_t entry_bytes) {
    unsigned char buffer[ROOM * 24 + 64];
    list_fn list = (list_fn)dlsym(library, name);
    unsigned int needed = 0;
    list(device, &needed, NULL);
    if (needed < 2) return 0;
    memset(buffer, CANARY, sizeof(buffer));
    unsigned int count = needed - 1;
    if (list(device, &count, buffer) != NVML_ERROR_INSUFFICIENT_SIZE || count != needed)
        return fprintf(stderr, "%s: does not ask for room\n", name);
    return is_canary(buffer + (needed - 1) * entry_bytes, buffer + sizeof(buffer))
               ? 0
               : fprintf(stderr, "%s: overrun\n", name);
}

static int check_structure(const char *name, size_t bytes, unsigned version) {
    unsigned char buffer[256];
    memset(buffer, CANARY, sizeof(buffer));
    unsigned int word = (unsigned int)bytes | version << 24;
    if (version != 0) memcpy(buffer, &word, sizeof(word));
    nvmlReturn_t result = ((fill_fn)dlsym(library, name))(device, buffer);
    if (result != NVML_SUCCESS) return fprintf(stderr, "%s: %d\n", name, result);
    return is_canary(buffer + bytes, buffer + sizeof(buffer)) ? 0 : fprintf(stderr, "%s: overrun\n", name);
}

/* A structure of another version is refused, not filled. */
static int check_version_is_looked_at(const char *name, size_t bytes, unsigned version) {
    unsigned char buffer[256];
    memset(buffer, CANARY, sizeof(buffer));
    unsigned int word = (unsigned int)bytes | (version + 1) << 24;
    memcpy(buffer, &word, sizeof(word));
    nvmlReturn_t result = ((fill_fn)dlsym(library, name))(device, buffer);
    return result == NVML_ERROR_ARGUMENT_VERSION_MISMATCH
               ? 0
               : fprintf(stderr, "%s: took a foreign version\n", name);
}

int main(int argc, char **argv) {
    library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (library == NULL) return fprintf(stderr, "%s\n", dlerror());
    nvmlReturn_t result = ((nvmlReturn_t (*)(void))dlsym(library, "nvmlInit_v2"))();
    if (result != NVML_SUCCESS) return fprintf(stderr, "nvmlInit_v2: %d\n", result);
    ((nvmlReturn_t (*)(unsigned, nvmlDevice_t *))dlsym(library, "nvmlDeviceGetHandleByIndex_v2"))(0, &device);
    int failures = 0;
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        failures += check_list(lists[i].name, lists[i].entry_bytes) != 0;
        failures += check_short_list(lists[i].name, lists[i].entry_bytes) != 0;
    }
    for (size_t i = 0; i < sizeof(structures) / sizeof(structures[0]); i++) {
        failures += check_structure(structures[i].name, structures[i].bytes, structures[i].version) != 0;
        if (structures[i].version != 0)
            failures += check_version_is_looked_at(structures[i].name, structures[i].bytes,
                                                   structures[i].version) != 0;
    }
    return failures != 0;
}
