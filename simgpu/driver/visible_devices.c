/* CUDA_VISIBLE_DEVICES as NVIDIA documents it: a list of ordinals and UUID prefixes that ends at the first
 * entry which names no GPU, more than one, or one that is listed already.
 *
 * A program uses no GPU with MIG enabled, only its instances: such a GPU stands for its first one. A process
 * sees one instance at most, and no whole GPU beside it (MIG User Guide, device enumeration). */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "driver/driver.h"

#define NO_GPU (-1)

static int by_ordinal(const struct sim_config *config, const char *entry) {
    char *end;
    long ordinal = strtol(entry, &end, 10);
    if (end == entry || *end != '\0') return NO_GPU;
    return ordinal >= 0 && ordinal < (long)config->gpu_count ? (int)ordinal : NO_GPU;
}

static int by_uuid_prefix(const struct sim_config *config, const char *entry) {
    int found = NO_GPU;
    size_t length = strlen(entry);
    for (unsigned i = 0; i < config->device_count; i++) {
        if (strncasecmp(config->gpu[i].uuid_text, entry, length) != 0) continue;
        if (found != NO_GPU) return NO_GPU;
        found = (int)i;
    }
    return found;
}

static int find(const struct sim_config *config, const char *entry) {
    bool is_uuid = strncasecmp(entry, "GPU-", 4) == 0 || strncasecmp(entry, "MIG-", 4) == 0;
    return is_uuid ? by_uuid_prefix(config, entry) : by_ordinal(config, entry);
}

static int first_instance(const struct sim_config *config, unsigned gpu) {
    for (unsigned i = config->gpu_count; i < config->device_count; i++)
        if (config->gpu[i].parent == gpu) return (int)i;
    return NO_GPU;
}

/* Put instances in the place of GPUs that have some; where there is any, it alone is left. */
static int only_usable(const struct sim_config *config, unsigned gpus[SIM_MAX_GPUS], int count) {
    int usable = 0;
    for (int i = 0; i < count; i++) {
        bool is_divided = config->gpu[gpus[i]].mig != 0 && !sim_is_instance(config, gpus[i]);
        int gpu = is_divided ? first_instance(config, gpus[i]) : (int)gpus[i];
        if (gpu == NO_GPU) continue;
        gpus[usable++] = (unsigned)gpu;
        if (!sim_is_instance(config, (unsigned)gpu)) continue;
        gpus[0] = (unsigned)gpu;
        return 1;
    }
    return usable;
}

static bool is_listed(const unsigned *gpus, int count, int gpu) {
    for (int i = 0; i < count; i++)
        if ((int)gpus[i] == gpu) return true;
    return false;
}

static int all(const struct sim_config *config, unsigned gpus[SIM_MAX_GPUS]) {
    for (unsigned i = 0; i < config->gpu_count; i++)
        gpus[i] = i;
    return (int)config->gpu_count;
}

static char *trimmed(char *entry) {
    entry += strspn(entry, " \t");
    size_t length = strlen(entry);
    while (length > 0 && strchr(" \t", entry[length - 1]) != NULL)
        entry[--length] = '\0';
    return entry;
}

int sim_visible_gpus(const struct sim_config *config, const char *visible, unsigned gpus[SIM_MAX_GPUS]) {
    char text[1024];
    if (visible == NULL) return only_usable(config, gpus, all(config, gpus));
    if (strlen(visible) >= sizeof(text)) return 0;
    strcpy(text, visible);
    int count = 0;
    for (char *rest = text, *entry; (entry = strsep(&rest, ",")) != NULL;) {
        int gpu = find(config, trimmed(entry));
        /* A GPU that is named twice hides every GPU. */
        if (gpu != NO_GPU && is_listed(gpus, count, gpu)) return 0;
        if (gpu == NO_GPU || count == (int)SIM_MAX_GPUS) break;
        gpus[count++] = (unsigned)gpu;
    }
    return only_usable(config, gpus, count);
}
