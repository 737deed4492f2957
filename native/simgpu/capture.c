#include "capture.h"

CUresult sim_capture_forbids(CUstream stream) {
    return stream->capture == NULL ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}
CUresult sim_capture_add(CUstream stream, const struct sim_work *work) {
    (void)stream, (void)work;
    return CUDA_ERROR_NOT_SUPPORTED;
}
void sim_capture_abandon(CUstream stream) {
    (void)stream;
}
CUresult sim_capture_allocate(CUstream stream, CUmemoryPool pool, size_t bytes, CUdeviceptr *address) {
    (void)stream, (void)pool, (void)bytes, (void)address;
    return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult sim_capture_record(CUstream stream, CUevent event) {
    (void)stream, (void)event;
    return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult sim_capture_await(CUstream stream, CUevent event) {
    (void)stream, (void)event;
    return CUDA_ERROR_NOT_SUPPORTED;
}
