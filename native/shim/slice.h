/* The slice that this process lives in: its limit file, its meter, and which of its GPUs a device ordinal is.
 */
#ifndef PGPU_SHIM_SLICE_H
#define PGPU_SHIM_SLICE_H

#include "cuda_abi.h"
#include "limit.h"
#include "meter.h"

/* Not a GPU of the lease. */
#define PGPU_NO_GPU (-1)

/* Set by pgpu_resolve before any real function can be called; NULL where CUDA is refused. */
extern const struct pgpu_limit *pgpu_slice_published_limit;
static inline const struct pgpu_limit *pgpu_slice_limit(void) {
    return __atomic_load_n(&pgpu_slice_published_limit, __ATOMIC_ACQUIRE);
}
extern struct pgpu_meter pgpu_slice_meter;

/* Take a slot and learn which GPU each ordinal is; after the real cuInit. */
CUresult pgpu_slice_enter(void);

/* The index in the limit file of a device ordinal, or PGPU_NO_GPU. */
int pgpu_slice_gpu_of(CUdevice ordinal);

/* Where an allocation made now would be counted. */
struct pgpu_place {
    int gpu;
    CUdevice ordinal;
    CUcontext context;
};

/* The current context's place, or the error with which the driver refuses to tell it. */
CUresult pgpu_slice_current(struct pgpu_place *place);

/* The same for work on a stream. `is_per_thread`: the handle 0 means the thread's own default stream. */
CUresult pgpu_slice_of_stream(CUstream stream, bool is_per_thread, struct pgpu_place *place);

/* The number of devices that there are; 0 before cuInit. */
int pgpu_slice_device_count(void);

/* What a context of this GPU is charged. */
uint64_t pgpu_slice_context_bytes(int gpu);

/* What the driver takes for an allocation of `bytes`. */
uint64_t pgpu_slice_granule(uint64_t bytes);

/* Lock and unlock around fork. */
void pgpu_slice_guard_forks(void);

#endif
