/* gpus.conf, read into numbers. README.md has its keys. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state/state.h"

enum kind { TEXT, NUMBER };

struct key {
    const char *name;
    enum kind kind;
    size_t offset, size_bytes;
    uint64_t otherwise; /* REQUIRED: the key must be there */
};

#define REQUIRED UINT64_MAX
#define GPU_NUMBER(name, otherwise)                                                                          \
    {#name, NUMBER, offsetof(struct sim_gpu, name), sizeof(uint64_t), otherwise}
#define GPU_TEXT(key, name, otherwise)                                                                       \
    {key, TEXT, offsetof(struct sim_gpu, name), sizeof(((struct sim_gpu *)0)->name), otherwise}

static const struct key gpu_keys[] = {
    GPU_TEXT("uuid", uuid_text, REQUIRED),
    GPU_TEXT("name", name, REQUIRED),
    GPU_TEXT("pci_bus_id", pci_bus_id, 0),
    GPU_NUMBER(memory_bytes, REQUIRED),
    GPU_NUMBER(context_bytes, REQUIRED),
    GPU_NUMBER(sm_count, REQUIRED),
    GPU_NUMBER(compute_major, REQUIRED),
    GPU_NUMBER(compute_minor, REQUIRED),
    GPU_NUMBER(l2_bytes, 4 << 20),
    GPU_NUMBER(bandwidth_bytes_per_second, 500000000000),
    GPU_NUMBER(pcie_bytes_per_second, 12000000000),
    GPU_NUMBER(shared_bytes_per_sm, 102400),
    GPU_NUMBER(threads_per_sm, 1536),
    GPU_NUMBER(l2_bytes_per_second, 2000000000000),
    GPU_NUMBER(unified_l1_bytes_per_sm, 131072),
    GPU_NUMBER(fp32_lanes_per_sm, 128),
    GPU_NUMBER(fp64_lanes_per_sm, 2),
    GPU_NUMBER(l1_latency_cycles, 38),
    GPU_NUMBER(l2_latency_cycles, 262),
    GPU_NUMBER(memory_latency_cycles, 466),
    GPU_NUMBER(time_slice_ns, 2000000),
    GPU_NUMBER(unequal_slices, 1),
    GPU_NUMBER(keeps_windows, 0),
    GPU_NUMBER(hides_processes, 0),
    GPU_NUMBER(fault_bytes_per_second, 5400000000),
    GPU_NUMBER(clock_khz, 1700000),
    GPU_NUMBER(memory_clock_khz, 9500000),
    GPU_NUMBER(memory_bus_bits, 384),
    GPU_NUMBER(power_milliwatts, 350000),
    GPU_NUMBER(reserved_bytes, 0),
    GPU_NUMBER(architecture, 7),
    GPU_NUMBER(pcie_generation, 4),
    GPU_NUMBER(pci_device_id, 0x2204),
    GPU_NUMBER(mig, 0),
    GPU_NUMBER(parent, 0),
    GPU_NUMBER(gpu_instance, 0),
    GPU_NUMBER(compute_instance, 0),
    GPU_NUMBER(integrated, 0),
};

static const struct key driver_keys[] = {
    {"driver_version", TEXT, offsetof(struct sim_config, driver_version),
     sizeof(((struct sim_config *)0)->driver_version), 0},
    {"cuda_version", NUMBER, offsetof(struct sim_config, cuda_version), sizeof(uint64_t), 13000},
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

struct reader {
    struct sim_config *config;
    const char *problem; /* NULL while all is well */
    unsigned line;
};

static bool read_number(const char *text, uint64_t *value) {
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 0);
    return errno == 0 && end != text && *end == '\0' && *text != '-';
}

static const char *set(const struct key *key, void *target, const char *text) {
    if (key->kind == NUMBER) {
        uint64_t value;
        if (!read_number(text, &value)) return "is no number";
        memcpy((char *)target + key->offset, &value, sizeof(value));
        return NULL;
    }
    if (strlen(text) >= key->size_bytes) return "is too long";
    memcpy((char *)target + key->offset, text, strlen(text) + 1);
    return NULL;
}

static const struct key *find(const struct key *keys, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(keys[i].name, name) == 0) return &keys[i];
    return NULL;
}

static void set_defaults(const struct key *keys, size_t count, void *target) {
    for (size_t i = 0; i < count; i++)
        if (keys[i].kind == NUMBER)
            memcpy((char *)target + keys[i].offset, &keys[i].otherwise, sizeof(uint64_t));
}

static void begin_device(struct reader *reader, bool is_instance) {
    struct sim_config *config = reader->config;
    if (config->device_count == SIM_MAX_GPUS) reader->problem = "makes more than 16 GPUs and instances";
    if (!is_instance && config->device_count > config->gpu_count)
        reader->problem = "is a GPU behind a MIG instance";
    if (reader->problem != NULL) return;
    struct sim_gpu *gpu = &config->gpu[config->device_count];
    set_defaults(gpu_keys, COUNT(gpu_keys), gpu);
    gpu->parent = config->device_count++;
    if (!is_instance) config->gpu_count++;
    snprintf(gpu->pci_bus_id, sizeof(gpu->pci_bus_id), "00000000:%02X:00.0", config->gpu_count);
}

static void take_pair(struct reader *reader, char *line, char *equals) {
    struct sim_config *config = reader->config;
    *equals = '\0';
    bool in_gpu = config->device_count > 0;
    const struct key *key =
        in_gpu ? find(gpu_keys, COUNT(gpu_keys), line) : find(driver_keys, COUNT(driver_keys), line);
    if (key == NULL) return;
    void *target = in_gpu ? (void *)&config->gpu[config->device_count - 1] : (void *)config;
    reader->problem = set(key, target, equals + 1);
}

static void take_line(struct reader *reader, char *line) {
    reader->line++;
    line[strcspn(line, "\r\n")] = '\0';
    char *equals = strchr(line, '=');
    if (line[0] == '\0' || line[0] == '#') return;
    if (strcmp(line, "[gpu]") == 0)
        begin_device(reader, false);
    else if (strcmp(line, "[mig]") == 0)
        begin_device(reader, true);
    else if (equals != NULL)
        take_pair(reader, line, equals);
    else
        reader->problem = "is no key=value";
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool read_uuid(const char *text, const char *kind, uint8_t uuid[16]) {
    if (strncmp(text, kind, 4) != 0) return false;
    unsigned digits = 0;
    for (const char *at = text + 4; *at != '\0'; at++) {
        if (*at == '-') continue;
        int value = hex_digit(*at);
        if (value < 0 || digits == 32) return false;
        uuid[digits / 2] = (uint8_t)(uuid[digits / 2] << 4 | value);
        digits++;
    }
    return digits == 32;
}

static const char *missing_key(const struct sim_gpu *gpu) {
    for (size_t i = 0; i < COUNT(gpu_keys); i++) {
        uint64_t value;
        const char *at = (const char *)gpu + gpu_keys[i].offset;
        if (gpu_keys[i].otherwise != REQUIRED) continue;
        memcpy(&value, at, sizeof(value));
        if (gpu_keys[i].kind == TEXT ? *at == '\0' : value == REQUIRED) return gpu_keys[i].name;
    }
    return NULL;
}

/* NULL: this GPU or instance is described well. */
static const char *wrong_key(const struct sim_config *config, unsigned index, uint8_t uuid[16]) {
    const struct sim_gpu *gpu = &config->gpu[index];
    bool is_instance = sim_is_instance(config, index);
    const char *missing = missing_key(gpu);
    if (missing != NULL) return missing;
    if (!read_uuid(gpu->uuid_text, is_instance ? "MIG-" : "GPU-", uuid)) return "uuid";
    bool has_parent = gpu->parent < config->gpu_count && config->gpu[gpu->parent].mig != 0;
    return is_instance && !has_parent ? "parent" : NULL;
}

static bool check_gpus(struct sim_config *config, const char *path, char *problem, size_t problem_bytes) {
    for (unsigned i = 0; i < config->device_count; i++) {
        const char *wrong = wrong_key(config, i, config->gpu[i].uuid);
        if (wrong == NULL) continue;
        snprintf(problem, problem_bytes, "%s: GPU %u has no valid %s", path, i, wrong);
        return false;
    }
    if (config->gpu_count == 0) snprintf(problem, problem_bytes, "%s: names no GPU", path);
    return config->gpu_count > 0;
}

static bool read_lines(FILE *file, struct reader *reader) {
    char line[512];
    while (reader->problem == NULL && fgets(line, sizeof(line), file) != NULL)
        take_line(reader, line);
    return reader->problem == NULL;
}

bool sim_config_read(const char *directory, struct sim_config *config, char *problem, size_t problem_bytes) {
    char path[SIM_PATH_BYTES];
    memset(config, 0, sizeof(*config));
    strcpy(config->driver_version, "580.95.05");
    set_defaults(driver_keys, COUNT(driver_keys), config);
    FILE *file = sim_state_path(directory, "gpus.conf", path) ? fopen(path, "re") : NULL;
    if (file == NULL) {
        snprintf(problem, problem_bytes, "%s/gpus.conf: %s", directory, strerror(errno));
        return false;
    }
    struct reader reader = {.config = config};
    bool is_read = read_lines(file, &reader);
    fclose(file);
    if (!is_read) snprintf(problem, problem_bytes, "%s: line %u %s", path, reader.line, reader.problem);
    return is_read && check_gpus(config, path, problem, problem_bytes);
}
