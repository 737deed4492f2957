#include "time/streams.h"

#include "functions.h"

static bool any_blocks, is_settled;
unsigned pgpu_streams_captures;

bool pgpu_streams_any_blocks(void) {
    return __atomic_load_n(&any_blocks, __ATOMIC_SEQ_CST);
}

void pgpu_streams_set_blocking(void) {
    __atomic_store_n(&any_blocks, true, __ATOMIC_SEQ_CST);
}

bool pgpu_streams_are_settled(void) {
    return __atomic_load_n(&is_settled, __ATOMIC_ACQUIRE);
}

void pgpu_streams_set_settled(void) {
    __atomic_store_n(&is_settled, true, __ATOMIC_RELEASE);
}

bool pgpu_streams_is_blocking(CUstream stream, bool is_per_thread) {
    unsigned int flags = CU_STREAM_DEFAULT;
    enum pgpu_stream_kind kind = pgpu_streams_kind(stream, is_per_thread);
    if (kind != PGPU_STREAM_MADE) return kind == PGPU_STREAM_OF_THREAD;
    return PGPU_REAL(cuStreamGetFlags)(stream, &flags) != CUDA_SUCCESS ||
           (flags & CU_STREAM_NON_BLOCKING) == 0;
}

bool pgpu_streams_is_capturing(CUstream stream, bool is_per_thread) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = is_per_thread ? PGPU_REAL(cuStreamIsCapturing_ptsz)(stream, &status)
                                    : PGPU_REAL(cuStreamIsCapturing)(stream, &status);
    return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void pgpu_streams_after_fork_in_child(void) {
    any_blocks = is_settled = false;
    pgpu_streams_captures = 0;
}
