/* What the simulated GPUs are, and the files through which all processes share them. The CUDA half and the
 * NVML half of the driver both stand on this; it knows nothing of either. README.md describes the files. */
#ifndef SIM_STATE_H
#define SIM_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "meter_abi.h"

#define SIM_MAX_GPUS   PGPU_MAX_GPUS
#define SIM_PATH_BYTES 256

struct sim_gpu {
    char uuid_text[48]; /* `GPU-` or, of a MIG instance, `MIG-`, and 36 characters */
    uint8_t uuid[16];
    char name[96];
    char pci_bus_id[32]; /* as NVML writes it: `00000000:01:00.0` */
    uint64_t memory_bytes, context_bytes, l2_bytes;
    uint64_t bandwidth_bytes_per_second, pcie_bytes_per_second;
    uint64_t sm_count, compute_major, compute_minor, shared_bytes_per_sm, threads_per_sm;
    uint64_t clock_khz, memory_clock_khz, memory_bus_bits, power_milliwatts;
    uint64_t reserved_bytes, architecture, pcie_generation, pci_device_id; /* NVML alone tells of these */
    uint64_t mig;                            /* 1: MIG is on, so that programs use its instances alone */
    uint64_t parent;                         /* index of the GPU that an instance is part of; a GPU's own */
    uint64_t gpu_instance, compute_instance; /* NVML's ids of an instance */
};

struct sim_config {
    char driver_version[32];
    uint64_t cuda_version;            /* 1000 · major + 10 · minor */
    unsigned gpu_count;               /* whole GPUs */
    unsigned device_count;            /* whole GPUs and, behind them, MIG instances */
    struct sim_gpu gpu[SIM_MAX_GPUS]; /* in the order of gpus.conf, which is NVML's */
};

static inline bool sim_is_instance(const struct sim_config *config, unsigned index) {
    return index >= config->gpu_count;
}

/* Write the state directory's path, found as README.md says; false: there is none, or its name is too long.
 */
bool sim_state_directory(char path[SIM_PATH_BYTES]);

/* Join the state directory and a file's name. */
bool sim_state_path(const char *directory, const char *name, char path[SIM_PATH_BYTES]);

/* Read gpus.conf. On failure `problem` holds one line that says why. */
bool sim_config_read(const char *directory, struct sim_config *config, char *problem, size_t problem_bytes);

/* Open a shared file of the directory, made with mode 0666 and at least `size_bytes` long; -1 on failure. */
int sim_shared_open(const char *directory, const char *name, size_t size_bytes);

/* Device time, by GPU and slot of the `memory` file. Each slot is written by its owner alone; readers may see
 * two neighbouring moments mixed, which is good enough for shares and utilisation. Times are CLOCK_MONOTONIC.
 */
struct sim_activity_slot {
    uint64_t updated_ns;  /* when the other words were written */
    uint64_t consumed_ns; /* device time used since the slot was claimed */
    uint64_t pending_ns;  /* device time queued and not yet used */
    uint64_t until_ns;    /* when the owner expects its queue to be empty; 0: it is */
};

#define SIM_SAMPLES          32
#define SIM_SAMPLE_PERIOD_NS 125000000ull

/* Busy time of one GPU, kept so that a reader needs not wait a sample period itself. */
struct sim_activity_gpu {
    uint64_t retired_ns;                  /* device time that former owners of slots used */
    uint64_t sample_count;                /* samples ever taken; sample i lies at i % SIM_SAMPLES */
    uint64_t sample_at_ns[SIM_SAMPLES];   /* when */
    uint64_t sample_busy_ns[SIM_SAMPLES]; /* device time used by then, by all */
    struct sim_activity_slot slot[PGPU_MAX_SLOTS];
};

struct sim_activity {
    struct sim_activity_gpu gpu[SIM_MAX_GPUS];
};

/* Map the activity file; NULL on failure. */
struct sim_activity *sim_activity_map(const char *directory);

/* Device time that a slot has used by `now_ns`: what it wrote, and its queue's progress since, in proportion.
 */
uint64_t sim_activity_used_ns(const struct sim_activity_slot *slot, uint64_t now_ns);

/* Device time that all processes have used until `now_ns`, with what they use right now. */
uint64_t sim_activity_busy_ns(const struct sim_activity_gpu *activity, uint64_t now_ns);

/* Take a sample if the last one is a period old. Anyone may. */
void sim_activity_sample(struct sim_activity_gpu *activity, uint64_t now_ns);

/* Share of the last second or so in which a kernel ran, 0–100. */
unsigned sim_activity_busy_percent(const struct sim_activity_gpu *activity, uint64_t now_ns);

uint64_t sim_now_ns(void);

#endif
