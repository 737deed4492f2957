/* Streams that write words of memory and wait for them. */
#include "place.h"

static CUresult submit(CUstream named, enum sim_work_kind kind, CUdeviceptr at, uint64_t value,
                       unsigned bytes, unsigned flags) {
    SIM_ENTER();
    CUstream stream;
    SIM_TRY(sim_stream_of(named, &stream));
    if (at % bytes != 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_check_device(at, bytes));
    struct sim_work work = {.kind = kind,
                            .value = {.at = at, .value = value, .bytes = bytes, .flags = flags}};
    return sim_submit(stream, &work);
}

SIM_EXPORT CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr at, cuuint32_t value,
                                            unsigned int flags) {
    if (flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) return CUDA_ERROR_INVALID_VALUE;
    return submit(stream, SIM_WORK_WRITE, at, value, 4, flags);
}

SIM_EXPORT CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr at, cuuint64_t value,
                                            unsigned int flags) {
    if (flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) return CUDA_ERROR_INVALID_VALUE;
    return submit(stream, SIM_WORK_WRITE, at, value, 8, flags);
}

SIM_EXPORT CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr at, cuuint32_t value,
                                           unsigned int flags) {
    if ((flags & ~(unsigned)CU_STREAM_WAIT_VALUE_FLUSH) > CU_STREAM_WAIT_VALUE_NOR)
        return CUDA_ERROR_INVALID_VALUE;
    return submit(stream, SIM_WORK_CHECK, at, value, 4, flags);
}

SIM_EXPORT CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr at, cuuint64_t value,
                                           unsigned int flags) {
    if ((flags & ~(unsigned)CU_STREAM_WAIT_VALUE_FLUSH) > CU_STREAM_WAIT_VALUE_NOR)
        return CUDA_ERROR_INVALID_VALUE;
    return submit(stream, SIM_WORK_CHECK, at, value, 8, flags);
}
