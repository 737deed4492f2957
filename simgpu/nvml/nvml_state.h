/* What every call of the NVML half begins with: is NVML initialised, and is the handle one of ours. A handle
 * is the address of the GPU's description. Every function that has a prototype in nvml_abi.h is exported. */
#ifndef SIM_NVML_STATE_H
#define SIM_NVML_STATE_H

#pragma GCC visibility push(default)
#include "nvml_abi.h"
#pragma GCC visibility pop

#include "reader.h"
#include "state/state.h"

struct sim_nvml {
    struct sim_config config;
    struct sim_activity *activity; /* NULL: this user may not write it, so kernels are unknown */
    char directory[SIM_PATH_BYTES];
    unsigned references;
};

/* Written only while no other call is allowed: by the first nvmlInit and the last nvmlShutdown. */
extern struct sim_nvml sim_nvml;

static inline unsigned sim_nvml_references(void) {
    return __atomic_load_n(&sim_nvml.references, __ATOMIC_ACQUIRE);
}

#define NVML_ENTER()                                                                                         \
    do {                                                                                                     \
        if (sim_nvml_references() == 0) return NVML_ERROR_UNINITIALIZED;                                     \
    } while (0)

#define NVML_REQUIRE(condition)                                                                              \
    do {                                                                                                     \
        if (!(condition)) return NVML_ERROR_INVALID_ARGUMENT;                                                \
    } while (0)

/* Declare `gpu`, the index of a GPU or MIG instance, or return the error for an invalid handle. */
#define NVML_ENTER_DEVICE(device, gpu)                                                                       \
    NVML_ENTER();                                                                                            \
    const unsigned gpu = sim_nvml_index(device);                                                             \
    NVML_REQUIRE(gpu < sim_nvml.config.device_count)

/* What a process holds of a GPU, with its managed memory that lies there; 0: it is dead. */
uint64_t sim_nvml_held_bytes(const struct pgpu_reader_slot *slot, unsigned gpu);

/* The index of a handle, or a number past all GPUs. */
unsigned sim_nvml_index(nvmlDevice_t device);

static inline const struct sim_gpu *sim_nvml_gpu(unsigned gpu) {
    return &sim_nvml.config.gpu[gpu];
}

/* NVML reports no utilisation of MIG instances, nor of a GPU that is divided into them. */
static inline bool sim_nvml_is_mig(unsigned gpu) {
    return sim_nvml_gpu(gpu)->mig != 0 || sim_is_instance(&sim_nvml.config, gpu);
}

#define NVML_REQUIRE_NO_MIG(gpu)                                                                             \
    do {                                                                                                     \
        if (sim_nvml_is_mig(gpu)) return NVML_ERROR_NOT_SUPPORTED;                                           \
    } while (0)

/* What NVML does not report of a GPU whose memory is the machine's. */
#define NVML_REQUIRE_OWN_MEMORY(gpu)                                                                         \
    do {                                                                                                     \
        if (sim_nvml_gpu(gpu)->integrated != 0) return NVML_ERROR_NOT_SUPPORTED;                             \
    } while (0)

static inline nvmlDevice_t sim_nvml_handle(unsigned gpu) {
    return (nvmlDevice_t)(uintptr_t)sim_nvml_gpu(gpu);
}

/* Copy text into a client's buffer, or return that it is too small. */
nvmlReturn_t sim_nvml_copy(char *target, unsigned target_bytes, const char *text);

/* Share of the last second in which a kernel ran, 0–100. */
unsigned sim_nvml_busy_percent(unsigned gpu);

/* The memory of all GPUs and the processes that hold it, now. NULL: it cannot be read. */
struct pgpu_reader_view *sim_nvml_new_view(void);
void sim_nvml_delete_view(struct pgpu_reader_view *view);

/* Microseconds since 1970, as NVML stamps its samples. */
unsigned long long sim_nvml_now_us(void);

#endif
