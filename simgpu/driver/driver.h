/* What every call of the CUDA half begins with: is the driver initialised in this very process, which devices
 * does it show, which context is current. */
#ifndef SIM_DRIVER_H
#define SIM_DRIVER_H

#include "cuda_abi.h"
#include "driver/call_gate.h"
#include "driver/handle.h"
#include "state/state.h"

#define SIM_EXPORT __attribute__((visibility("default")))

struct sim_driver {
    struct sim_config config;
    struct sim_activity *activity;
    unsigned slot; /* of this process, in the files `memory` and `activity` */
    int device_count;
    unsigned gpu_of_device[SIM_MAX_GPUS]; /* index into config.gpu, by ordinal */
    bool has_backing;                     /* false: PGPU_SIMGPU_BACKING=none */
    char directory[SIM_PATH_BYTES];
};

extern SIM_INTERNAL struct sim_driver sim_driver;

/* A page that a forked child reads as zero: the child of a process that used CUDA cannot use it. */
struct sim_process {
    uint32_t state; /* 0: not initialised; SIM_READY; else the error that every call answers from now on */
};
#define SIM_READY 1u
extern SIM_INTERNAL struct sim_process *sim_process;

static inline uint32_t sim_state_now(void) {
    struct sim_process *process = __atomic_load_n(&sim_process, __ATOMIC_ACQUIRE);
    return process == NULL ? 0 : __atomic_load_n(&process->state, __ATOMIC_RELAXED);
}

static inline bool sim_is_ready(void) {
    return sim_state_now() != 0;
}

/* What a call that waited answers: CUDA_SUCCESS, or the error that came up meanwhile. */
static inline CUresult sim_outcome(void) {
    uint32_t state = sim_state_now();
    return state > SIM_READY ? (CUresult)state : CUDA_SUCCESS;
}

/* From now on every call answers this error; the first one stays. */
void sim_fail(CUresult error);

/* PGPU_SIMGPU_FAULT_AT_LAUNCH: the n-th kernel launch of this process, counted from 1, touches memory that is
 * not its own. 0: none does. */
extern SIM_INTERNAL unsigned sim_fault_at_launch;

/* Count a launch. */
void sim_fault_count(void);

#define SIM_JOINED(name, line) name##line
#define SIM_NAMED(name, line)  SIM_JOINED(name, line)

/* Wait while this process is locked for a checkpoint, then return CUDA_ERROR_NOT_INITIALIZED unless cuInit
 * succeeded in it, or the error that sticks. */
#define SIM_ENTER()                                                                                          \
    __attribute__((cleanup(sim_call_end), unused)) const bool SIM_NAMED(sim_call, __LINE__) =                \
        sim_call_begin(sim_is_ready());                                                                      \
    do {                                                                                                     \
        uint32_t sim_state = sim_state_now();                                                                \
        if (sim_state != SIM_READY)                                                                          \
            return sim_state == 0 ? CUDA_ERROR_NOT_INITIALIZED : (CUresult)sim_state;                        \
    } while (0)

/* Declare `context`, the current one, or return the error for a missing one. */
#define SIM_ENTER_CONTEXT(context)                                                                           \
    SIM_ENTER();                                                                                             \
    CUcontext context;                                                                                       \
    do {                                                                                                     \
        CUresult sim_result = sim_current_context(&context);                                                 \
        if (sim_result != CUDA_SUCCESS) return sim_result;                                                   \
    } while (0)

#define SIM_TRY(expression)                                                                                  \
    do {                                                                                                     \
        CUresult sim_result = (expression);                                                                  \
        if (sim_result != CUDA_SUCCESS) return sim_result;                                                   \
    } while (0)

extern SIM_INTERNAL __thread CUcontext sim_current; /* the top of the thread's stack */
extern SIM_INTERNAL struct sim_slab sim_contexts;

static inline CUresult sim_current_context(CUcontext *context) {
    *context = sim_current;
    if (*context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    return sim_is_live(&sim_contexts, *context) ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static inline bool sim_is_device(CUdevice device) {
    return device >= 0 && device < sim_driver.device_count;
}

static inline const struct sim_gpu *sim_gpu_of(CUdevice device) {
    return &sim_driver.config.gpu[sim_driver.gpu_of_device[device]];
}

/* The one mutex of objects, address ranges and queues. Nothing waits for time or for another process under
 * it. */
void sim_lock(void);
void sim_unlock(void);
static inline int sim_lock_now(void) {
    sim_lock();
    return 0;
}
static inline void sim_unlock_at_exit(int *unused) {
    (void)unused;
    sim_unlock();
}
/* Hold the mutex until the enclosing block ends. */
#define SIM_LOCKED() __attribute__((cleanup(sim_unlock_at_exit), unused)) int sim_locked = sim_lock_now()

/* Take device memory, or CUDA_ERROR_OUT_OF_MEMORY; `gpu` indexes config.gpu. Safe against any death. */
CUresult sim_device_reserve(unsigned gpu, uint64_t bytes);
void sim_device_refund(unsigned gpu, uint64_t bytes);
/* Take back what the dead held of it. */
void sim_device_reap(unsigned gpu);
/* Bytes of the device that are held by any process; and the same with managed memory and without dead
 * processes. */
uint64_t sim_device_total_bytes(unsigned gpu);
uint64_t sim_device_used_bytes(unsigned gpu);
/* What this process holds of it for good. */
uint64_t sim_device_own_bytes(unsigned gpu);
bool sim_device_claim(const char *directory, unsigned gpu_count, char *problem, size_t problem_bytes);
/* Whether the process that owns a slot still lives. */
bool sim_device_slot_is_alive(unsigned slot);
/* A number that distinguishes a slot's owner from its former ones. */
uint64_t sim_device_slot_owner(unsigned slot);

/* Fill `gpus` with the indices that CUDA_VISIBLE_DEVICES shows, in its order; return their number. */
int sim_visible_gpus(const struct sim_config *config, const char *visible, unsigned gpus[SIM_MAX_GPUS]);

/* One line on stderr that names the driver. */
void sim_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
