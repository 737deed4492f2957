/* Pageable memory of a job that oversubscribes: ordinary allocations are made as managed memory, which the
 * driver may move to the host.
 *
 * Memory that cannot be managed stays on the device and is charged to the limit file's `resident_bytes`:
 * contexts, modules, arrays, pools, virtual memory, and memory shared with other processes. */
#ifndef PGPU_SHIM_PAGING_H
#define PGPU_SHIM_PAGING_H

#include "slice/slice.h"

static inline bool pgpu_paging_is_on(void) {
    const struct pgpu_limit *limit = pgpu_slice_limit();
    return limit != NULL && pgpu_limit_oversubscribes(limit); /* NULL before cuInit */
}

/* Refuse CUDA, with one line, where a GPU of the lease cannot page while kernels run. */
CUresult pgpu_paging_check(int device_count);

/* Results are those of cuMemAlloc and cuMemAllocPitch. */
CUresult pgpu_paging_allocate(CUdeviceptr *pointer, size_t bytes, CUdevice ordinal);
CUresult pgpu_paging_allocate_pitch(CUdeviceptr *pointer, size_t *pitch_bytes, size_t width_bytes,
                                    size_t height, unsigned int element_bytes, CUdevice ordinal);

/* A launch continues under this compute word. If the job was held since the last launch of this process,
 * other jobs may have evicted its memory: prefetch all of it in the launch's stream, at the speed of copies
 * instead of page faults. */
void pgpu_paging_prefetch_after_hold(int gpu, uint64_t word, CUstream stream, bool is_per_thread);

#endif
