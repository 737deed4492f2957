/* Streams that write words of memory and wait for them, one by one or in batches. */
#include "stream/capture.h"
#include "copy/place.h"

/* The simulated device reports that it cannot flush remote writes. */
static CUresult check_wait_flags(unsigned flags) {
    if ((flags & (unsigned)CU_STREAM_WAIT_VALUE_FLUSH) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    return flags <= CU_STREAM_WAIT_VALUE_NOR ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult check_write_flags(unsigned flags) {
    return flags <= CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult fill(struct sim_work *work, enum sim_work_kind kind, CUdeviceptr at, uint64_t value,
                     unsigned bytes, unsigned flags) {
    if (at == 0 || at % bytes != 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_check_device(at, bytes));
    *work =
        (struct sim_work){.kind = kind, .value = {.at = at, .value = value, .bytes = bytes, .flags = flags}};
    return CUDA_SUCCESS;
}

static CUresult translate_reduction(const CUstreamBatchMemOpParams *operation, struct sim_work *work) {
    unsigned how = operation->atomicReduction.reductionOp;
    bool is_long = operation->atomicReduction.dataType == CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_64;
    bool is_known = how == CU_STREAM_ATOMIC_REDUCTION_OP_ADD || how == CU_STREAM_ATOMIC_REDUCTION_OP_AND ||
                    how == CU_STREAM_ATOMIC_REDUCTION_OP_OR;
    bool is_word = operation->atomicReduction.dataType == CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_32;
    if (!is_known || (!is_word && !is_long) || operation->atomicReduction.flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return fill(work, SIM_WORK_REDUCE, operation->atomicReduction.address, operation->atomicReduction.value,
                is_long ? 8 : 4, how);
}

CUresult sim_value_translate(const CUstreamBatchMemOpParams *operation, struct sim_work *work) {
    CUdeviceptr at = operation->waitValue.address;
    unsigned flags = operation->waitValue.flags;
    *work = (struct sim_work){.kind = SIM_WORK_NOTHING};
    switch ((int)operation->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        SIM_TRY(check_wait_flags(flags));
        return fill(work, SIM_WORK_CHECK, at, operation->waitValue.value, 4, flags);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        SIM_TRY(check_wait_flags(flags));
        return fill(work, SIM_WORK_CHECK, at, operation->waitValue.value64, 8, flags);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        SIM_TRY(check_write_flags(flags));
        return fill(work, SIM_WORK_WRITE, at, operation->writeValue.value, 4, flags);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        SIM_TRY(check_write_flags(flags));
        return fill(work, SIM_WORK_WRITE, at, operation->writeValue.value64, 8, flags);
    case CU_STREAM_MEM_OP_BARRIER:
        return operation->memoryBarrier.flags <= CU_STREAM_MEMORY_BARRIER_TYPE_GPU ? CUDA_SUCCESS
                                                                                   : CUDA_ERROR_INVALID_VALUE;
    case CU_STREAM_MEM_OP_ATOMIC_REDUCTION:
        return translate_reduction(operation, work);
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        return CUDA_ERROR_NOT_SUPPORTED;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

void sim_value_describe(const struct sim_work *work, CUstreamBatchMemOpParams *operation) {
    const struct sim_value *value = &work->value;
    bool is_long = value->bytes == 8;
    *operation = (CUstreamBatchMemOpParams){.operation = CU_STREAM_MEM_OP_BARRIER};
    if (work->kind == SIM_WORK_CHECK) {
        operation->operation = is_long ? CU_STREAM_MEM_OP_WAIT_VALUE_64 : CU_STREAM_MEM_OP_WAIT_VALUE_32;
    } else if (work->kind == SIM_WORK_WRITE) {
        operation->operation = is_long ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WRITE_VALUE_32;
    }
    operation->waitValue.address = value->at;
    operation->waitValue.value64 = value->value;
    operation->waitValue.flags = value->flags;
}

static CUresult submit(CUstream named, enum sim_work_kind kind, CUdeviceptr at, uint64_t value,
                       unsigned bytes, unsigned flags) {
    SIM_ENTER();
    CUstream stream;
    struct sim_work work;
    SIM_TRY(kind == SIM_WORK_CHECK ? check_wait_flags(flags) : check_write_flags(flags));
    SIM_TRY(sim_stream_of(named, &stream));
    SIM_TRY(fill(&work, kind, at, value, bytes, flags));
    return sim_submit(stream, &work);
}

SIM_EXPORT CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr at, cuuint32_t value,
                                            unsigned int flags) {
    return submit(stream, SIM_WORK_WRITE, at, value, 4, flags);
}

SIM_EXPORT CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr at, cuuint64_t value,
                                            unsigned int flags) {
    return submit(stream, SIM_WORK_WRITE, at, value, 8, flags);
}

SIM_EXPORT CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr at, cuuint32_t value,
                                           unsigned int flags) {
    return submit(stream, SIM_WORK_CHECK, at, value, 4, flags);
}

SIM_EXPORT CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr at, cuuint64_t value,
                                           unsigned int flags) {
    return submit(stream, SIM_WORK_CHECK, at, value, 8, flags);
}

SIM_EXPORT CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr at, cuuint32_t value,
                                         unsigned int flags) {
    return cuStreamWriteValue32_v2(stream, at, value, flags);
}

SIM_EXPORT CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr at, cuuint64_t value,
                                         unsigned int flags) {
    return cuStreamWriteValue64_v2(stream, at, value, flags);
}

SIM_EXPORT CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr at, cuuint32_t value,
                                        unsigned int flags) {
    return cuStreamWaitValue32_v2(stream, at, value, flags);
}

SIM_EXPORT CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr at, cuuint64_t value,
                                        unsigned int flags) {
    return cuStreamWaitValue64_v2(stream, at, value, flags);
}

/* CUDA's bound. */
#define MAX_OPERATIONS 256u

static CUresult check_all(CUstreamBatchMemOpParams *operations, unsigned count) {
    struct sim_work unused;
    for (unsigned i = 0; i < count; i++)
        SIM_TRY(sim_value_translate(&operations[i], &unused));
    return CUDA_SUCCESS;
}

static CUresult capture_batch(CUstream stream, CUstreamBatchMemOpParams *operations, unsigned count) {
    SIM_LOCKED();
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
                                .memOp = {.ctx = stream->context, .count = count, .paramArray = operations}};
    return sim_capture_add_described(stream, &params);
}

SIM_EXPORT CUresult cuStreamBatchMemOp_v2(CUstream named, unsigned int count,
                                          CUstreamBatchMemOpParams *operations, unsigned int flags) {
    SIM_ENTER();
    CUstream stream;
    struct sim_work work;
    if (count == 0 || count > MAX_OPERATIONS || operations == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_stream_of(named, &stream));
    SIM_TRY(check_all(operations, count));
    if (stream->capture != NULL) return capture_batch(stream, operations, count);
    for (unsigned i = 0; i < count; i++) {
        SIM_TRY(sim_value_translate(&operations[i], &work));
        if (work.kind != SIM_WORK_NOTHING) SIM_TRY(sim_submit(stream, &work));
    }
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamBatchMemOp(CUstream stream, unsigned int count,
                                       CUstreamBatchMemOpParams *operations, unsigned int flags) {
    return cuStreamBatchMemOp_v2(stream, count, operations, flags);
}
