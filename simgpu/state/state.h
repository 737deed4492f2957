/* The simulated GPUs, and the files through which all processes share them. The CUDA half and the NVML half
 * of the driver both depend on this header, which depends on neither. README.md describes the files. */
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
    uint64_t l2_bytes_per_second, unified_l1_bytes_per_sm;
    uint64_t fp32_lanes_per_sm, fp64_lanes_per_sm;
    uint64_t l1_latency_cycles, l2_latency_cycles, memory_latency_cycles;
    uint64_t time_slice_ns;
    uint64_t unequal_slices;         /* processes in odd slots have windows so many times as long */
    uint64_t keeps_windows;          /* 1: a window lasts even if nothing is left to do in it */
    uint64_t hides_processes;        /* 1: NVML does not report the memory of processes */
    uint64_t fault_bytes_per_second; /* of managed memory that moves because a kernel touches it */
    uint64_t reserved_bytes, architecture, pcie_generation, pci_device_id; /* reported by NVML alone */
    uint64_t mig;                            /* 1: MIG is on, so that programs use its instances alone */
    uint64_t parent;                         /* index of the GPU that an instance is part of; a GPU's own */
    uint64_t gpu_instance, compute_instance; /* NVML's ids of an instance */
    uint64_t integrated;                     /* 1: its memory is the machine's, so that NVML reports none */
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

/* Write the state directory's path, found in the order that README.md lists; false: there is none, or its
 * name is too long. */
bool sim_state_directory(char path[SIM_PATH_BYTES]);

/* Join the state directory and a file's name. */
bool sim_state_path(const char *directory, const char *name, char path[SIM_PATH_BYTES]);

/* Read gpus.conf. On failure `problem` is one line with the reason. */
bool sim_config_read(const char *directory, struct sim_config *config, char *problem, size_t problem_bytes);

/* Open a shared file of the directory, made with mode 0666 and at least `size_bytes` long; -1 on failure. */
int sim_shared_open(const char *directory, const char *name, size_t size_bytes);

/* The demand of work on a GPU in each ns of its own time there; demand.h has the model. The first fields are
 * amounts, which add up; the second ones are conditions while it runs, which are averaged. All are doubles,
 * so that a demand can be treated as a vector. */
struct sim_demand {
    double fixed_ns;
    double arithmetic_ns;             /* with the threads it has, each taking one lane */
    double fp32_ns, fp64_ns, pcie_ns; /* what it takes of the whole GPU's */
    double dram_bytes, l1_read_bytes, l2_read_bytes;
    /* accesses that it waits for one after the other, by where they are served at best */
    double l1_waits, l2_waits, dram_waits;
    double managed_bytes; /* managed memory that it touches */

    double slots;                      /* of the GPU's room for blocks, 0..1 */
    double sm_share;                   /* of the GPU's multiprocessors, 0..1 */
    double l1_bytes;                   /* the L1 that it has on each of its multiprocessors */
    double l1_set_bytes, l2_set_bytes; /* working sets: on each of its multiprocessors, and in all */
    double managed_set_bytes;          /* and of managed memory */
};

/* How long parts of a GPU were in use, in ns of the whole: what NVML's performance metrics are made of. */
struct sim_usage {
    double sms_ns, slots_ns, dram_ns, fp32_ns;
};

/* Device time, by GPU and slot of the `memory` file. Each slot is written by its owner alone; readers may see
 * two neighbouring moments mixed, which is good enough for shares and utilisation. Times are CLOCK_MONOTONIC.
 * pgpu.gpu.simulated_activity reads the first words too.
 */
struct sim_activity_slot {
    uint64_t updated_ns;      /* when the other words were written */
    uint64_t consumed_ns;     /* device time used since the slot was claimed: what its work takes alone */
    uint64_t pending_ns;      /* device time queued and not yet used */
    uint64_t until_ns;        /* when the owner expects its queue to be empty; 0: it is */
    uint64_t busy_ns;         /* real time in which its work ran since the slot was claimed */
    uint64_t server;          /* its MPS server, 0: none */
    uint64_t block_ns;        /* how long the longest of its queued blocks stays */
    uint64_t pending_busy_ns; /* real time in which what is queued should run */
    struct sim_demand demand; /* of what is queued, on average */
    uint64_t resident_bytes;  /* managed memory on the device; others take from it when they need the room */
    uint64_t touched_at_ns;   /* when some of it came in last */
    double dram_share;        /* of the memory's bandwidth, that what is queued takes */
    struct sim_usage usage;   /* never taken back: a new owner goes on with it */
    uint64_t padding[7];
};

_Static_assert(sizeof(struct sim_activity_slot) == 320, "the slot of a process has fixed offsets");

/* Registers of one multiprocessor: 65,536 of 32 bits on every GPU since Kepler. */
#define SIM_REGISTER_BYTES_PER_SM 262144u

#define SIM_SAMPLES          32
#define SIM_SAMPLE_PERIOD_NS 125000000ull

/* Busy time of one GPU, kept so that a reader needs not wait a sample period itself. */
struct sim_activity_gpu {
    uint64_t retired_ns;                  /* time in which work of slots' former owners ran */
    uint64_t slots_used;                  /* no slot from here on was ever claimed */
    uint64_t sample_count;                /* samples ever taken; sample i lies at i % SIM_SAMPLES */
    uint64_t sample_at_ns[SIM_SAMPLES];   /* when */
    uint64_t sample_busy_ns[SIM_SAMPLES]; /* time in which work of any process had run by then */
    struct sim_activity_slot slot[PGPU_MAX_SLOTS];
};

struct sim_activity {
    struct sim_activity_gpu gpu[SIM_MAX_GPUS];
};

/* As pgpu.gpu.simulated_activity reads them. */
_Static_assert(offsetof(struct sim_activity_slot, consumed_ns) == 8, "");
_Static_assert(offsetof(struct sim_activity_slot, pending_busy_ns) == 56, "");
_Static_assert(offsetof(struct sim_activity_gpu, slots_used) == 8, "");
_Static_assert(offsetof(struct sim_activity_gpu, slot) == 536, "");

/* Map the activity file; NULL on failure. */
struct sim_activity *sim_activity_map(const char *directory);

/* A slot is ours from now on: what its former owner used stays in the device's total, and nothing of it is
 * queued. */
void sim_activity_take_slot(struct sim_activity_gpu *activity, unsigned index, uint64_t server,
                            uint64_t now_ns);

/* Device time that a slot has used by `now_ns`: what it wrote, and its queue's progress since, in proportion.
 */
uint64_t sim_activity_used_ns(const struct sim_activity_slot *slot, uint64_t now_ns);

/* Real time in which a slot's work ran until `now_ns`, in the same way. */
uint64_t sim_activity_slot_busy_ns(const struct sim_activity_slot *slot, uint64_t now_ns);

/* Time in which work of any process ran until `now_ns`: what overlaps under MPS counts for each. */
uint64_t sim_activity_busy_ns(const struct sim_activity_gpu *activity, uint64_t now_ns);

/* What all have used of a GPU until `now_ns`. */
struct sim_usage sim_activity_usage(const struct sim_activity_gpu *activity, uint64_t now_ns);

/* Take a sample if the last one is a period old. Any process may. */
void sim_activity_sample(struct sim_activity_gpu *activity, uint64_t now_ns);

/* Share of the last second or so in which a kernel ran, 0–100. */
unsigned sim_activity_busy_percent(const struct sim_activity_gpu *activity, uint64_t now_ns);

uint64_t sim_now_ns(void);

#endif
