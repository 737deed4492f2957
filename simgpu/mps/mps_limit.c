#include "mps/mps_limit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define NO_GPU (-1)

static unsigned shift_of(char unit) {
    switch (unit) {
    case 'K':
    case 'k':
        return 10;
    case 'M':
    case 'm':
        return 20;
    case 'G':
    case 'g':
        return 30;
    default:
        return 0;
    }
}

bool mps_parse_bytes(const char *word, uint64_t *bytes) {
    char *end;
    unsigned long long amount = strtoull(word, &end, 10);
    if (end == word || amount == 0 || strchr("-+ ", word[0]) != NULL) return false;
    unsigned shift = shift_of(*end);
    if (shift > 0) end++;
    if (*end == 'B' || *end == 'b') end++;
    *bytes = (uint64_t)amount << shift;
    return *end == '\0' && *bytes >> shift == amount;
}

bool mps_parse_percentage(const char *word, uint32_t *tenths) {
    char *end;
    double percentage = strtod(word, &end);
    if (end == word || *end != '\0' || !(percentage > 0 && percentage <= 100)) return false;
    *tenths = (uint32_t)(percentage * 10 + 0.5);
    if (*tenths == 0) *tenths = 1;
    return true;
}

static int gpu_named(const char *name, const struct sim_config *config, const unsigned *gpus, int gpu_count) {
    char *end;
    long ordinal = strtol(name, &end, 10);
    if (end != name && *end == '\0') return ordinal >= 0 && ordinal < gpu_count ? (int)gpus[ordinal] : NO_GPU;
    for (int i = 0; i < gpu_count; i++)
        if (*name != '\0' && strncasecmp(config->gpu[gpus[i]].uuid_text, name, strlen(name)) == 0)
            return (int)gpus[i];
    return NO_GPU;
}

static bool apply(char *entry, const struct sim_config *config, const unsigned *gpus, int gpu_count,
                  uint64_t limit_bytes[SIM_MAX_GPUS]) {
    uint64_t bytes;
    char *equals = strchr(entry, '=');
    if (equals == NULL) return false;
    *equals = '\0';
    int gpu = gpu_named(entry, config, gpus, gpu_count);
    if (gpu == NO_GPU || !mps_parse_bytes(equals + 1, &bytes)) return false;
    if (limit_bytes[gpu] == 0 || bytes < limit_bytes[gpu]) limit_bytes[gpu] = bytes;
    return true;
}

bool mps_apply_limits(const char *list, const struct sim_config *config, const unsigned *gpus, int gpu_count,
                      uint64_t limit_bytes[SIM_MAX_GPUS]) {
    char text[1024];
    if ((size_t)snprintf(text, sizeof(text), "%s", list) >= sizeof(text)) return false;
    for (char *rest = text, *entry; (entry = strsep(&rest, ",")) != NULL;)
        if (!apply(entry + strspn(entry, " \t"), config, gpus, gpu_count, limit_bytes)) return false;
    return true;
}
