/* Reading a usage file from outside its protocol: by pread with bounds checks, never mapped and without
 * waiting, so that a forged or truncated file misleads only its owner's job. */
#ifndef PGPU_METER_READER_H
#define PGPU_METER_READER_H

#include <stdbool.h>
#include <stdint.h>

#include "meter.h"

struct pgpu_reader_gpu {
    uint64_t used_bytes; /* of slots that may still hold memory */
    uint64_t peak_bytes;
    uint64_t refusals;
};

struct pgpu_reader_slot {
    uint32_t slot;
    uint32_t pid; /* in its own PID namespace */
    uint64_t start_time_ticks;
    uint64_t pid_namespace;
    bool is_alive; /* false: only a forked child may still hold the memory */
    uint64_t used_bytes[PGPU_MAX_GPUS];
};

struct pgpu_reader_view {
    struct pgpu_reader_gpu gpu[PGPU_MAX_GPUS];
    unsigned slot_count;
    struct pgpu_reader_slot slot[PGPU_MAX_SLOTS]; /* held ones only, in slot order */
};

/* Fill `view` (150 KB: not for a small stack). An empty file reads as nothing used. */
enum pgpu_meter_status pgpu_reader_read(const char *usage_path, struct pgpu_reader_view *view);

#endif
