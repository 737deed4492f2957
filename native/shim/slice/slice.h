/* The slice that this process lives in: its limit file, its meter, and which of its GPUs a device ordinal is.
 */
#ifndef PGPU_SHIM_SLICE_H
#define PGPU_SHIM_SLICE_H

#include "cuda_abi.h"
#include "limit.h"
#include "meter.h"

/* Not a GPU of the lease. */
#define PGPU_NO_GPU (-1)

/* Set by resolve.c before any real function can be called; NULL where CUDA is refused. */
extern const struct pgpu_limit *pgpu_slice_published_limit;
static inline const struct pgpu_limit *pgpu_slice_limit(void) {
    return __atomic_load_n(&pgpu_slice_published_limit, __ATOMIC_ACQUIRE);
}
extern struct pgpu_meter pgpu_slice_meter;

/* Take a slot and find the GPU of each ordinal; after the real cuInit. */
CUresult pgpu_slice_enter(void);

/* The index in the limit file of a device ordinal, or PGPU_NO_GPU. */
int pgpu_slice_gpu_of(CUdevice ordinal);

/* Where an allocation made now would be charged. */
struct pgpu_place {
    int gpu;
    CUdevice ordinal;
    CUcontext context;
};

/* The current context's place, or the driver's error. */
CUresult pgpu_slice_current(struct pgpu_place *place);

/* The handles 0, 1 and 2 stand for default streams, of whichever context is current. */
static inline bool pgpu_is_default_stream(CUstream stream) {
    return (uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD;
}

/* The same for work on a stream. `is_per_thread`: the handle 0 means the thread's own default stream. */
CUresult pgpu_slice_of_stream(CUstream stream, bool is_per_thread, struct pgpu_place *place);

/* What launches do beside the driver's call, where no share concerns them: the number of functions that wait
 * for their first launch (memory/first_launches.h), and whether there is a trace. */
#define PGPU_DUTY_TRACE (1u << 31)
extern uint32_t pgpu_slice_launch_duties __attribute__((visibility("hidden")));
static inline uint32_t pgpu_slice_duties(void) {
    return __atomic_load_n(&pgpu_slice_launch_duties, __ATOMIC_RELAXED);
}

/* A context is about to be made. While there is only one, a default stream's handle is unambiguous. */
extern unsigned pgpu_slice_contexts_begun __attribute__((visibility("hidden")));
static inline void pgpu_slice_begin_context(void) {
    __atomic_fetch_add(&pgpu_slice_contexts_begun, 1, __ATOMIC_SEQ_CST);
}
static inline bool pgpu_slice_has_one_context(void) {
    return __atomic_load_n(&pgpu_slice_contexts_begun, __ATOMIC_ACQUIRE) == 1;
}

/* The number of devices that there are; 0 before cuInit. */
int pgpu_slice_device_count(void);

/* The charge for a context of this GPU. */
uint64_t pgpu_slice_context_bytes(int gpu);

/* Mark this process as one that must not be checkpointed any more: it has managed memory, or shares memory
 * with another process, which checkpointing drivers may break. */
void pgpu_slice_forbid_checkpoint(void);

/* The driver's size for an allocation of `bytes`. */
uint64_t pgpu_slice_granule(uint64_t bytes);

#endif
