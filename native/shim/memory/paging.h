/* Ordinary memory that the driver may move to the host, where the job oversubscribes: managed memory that the
 * program takes for what it asked for.
 *
 * What cannot be managed stays on the device and counts against the limit file's `resident_bytes`: contexts,
 * modules, arrays, pools, virtual memory, and what other processes share. */
#ifndef PGPU_SHIM_PAGING_H
#define PGPU_SHIM_PAGING_H

#include "slice/slice.h"

static inline bool pgpu_paging_is_on(void) {
    const struct pgpu_limit *limit = pgpu_slice_limit();
    return limit != NULL && pgpu_limit_oversubscribes(limit); /* NULL before cuInit */
}

/* Refuse CUDA, with one line, where a GPU of the lease cannot page while kernels run. */
CUresult pgpu_paging_check(int device_count);

/* As cuMemAlloc and cuMemAllocPitch answer. */
CUresult pgpu_paging_allocate(CUdeviceptr *pointer, size_t bytes, CUdevice ordinal);
CUresult pgpu_paging_allocate_pitch(CUdeviceptr *pointer, size_t *pitch_bytes, size_t width_bytes,
                                    size_t height, unsigned int element_bytes, CUdevice ordinal);

/* A launch goes on, under this word of compute. If the job was held since this process last launched, others
 * may have pushed out what it works on, whether it wanted to launch meanwhile or not: have the driver bring
 * all of it back, ahead of the work in that stream, at the speed of copies and not of page faults. */
void pgpu_paging_prefetch_after_hold(int gpu, uint64_t word, CUstream stream, bool is_per_thread);

#endif
