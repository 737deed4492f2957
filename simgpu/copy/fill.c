/* Memory set to a value: whole pages of zero are given back, not written. */
#include "copy/place.h"

static CUresult fill(struct sim_fill shape, CUstream named, bool is_async) {
    SIM_ENTER_CONTEXT(context);
    CUstream stream;
    (void)context;
    SIM_TRY(sim_stream_of(named, &stream));
    if (shape.to % shape.element_bytes != 0) return CUDA_ERROR_INVALID_VALUE;
    if (shape.width == 0 || shape.height == 0) return CUDA_SUCCESS;
    size_t row_bytes = shape.width * shape.element_bytes;
    if (shape.height > 1 && shape.row_bytes < row_bytes) return CUDA_ERROR_INVALID_VALUE;
    /* What a capturing stream fills may be allocated by the graph itself. */
    if (stream->capture == NULL)
        SIM_TRY(sim_check_device(shape.to, (shape.height - 1) * shape.row_bytes + row_bytes));
    struct sim_work work = {.kind = SIM_WORK_FILL, .fill = shape};
    return is_async ? sim_submit(stream, &work) : sim_submit_and_wait(stream, &work);
}

#define FILL_1D(bits, value_type)                                                                            \
    SIM_EXPORT CUresult cuMemsetD##bits##_v2(CUdeviceptr to, value_type value, size_t count) {               \
        return fill((struct sim_fill){to, value, (bits) / 8, count, 1, 0}, NULL, false);                     \
    }                                                                                                        \
    SIM_EXPORT CUresult cuMemsetD##bits##Async(CUdeviceptr to, value_type value, size_t count,               \
                                               CUstream stream) {                                            \
        return fill((struct sim_fill){to, value, (bits) / 8, count, 1, 0}, stream, true);                    \
    }

#define FILL_2D(bits, value_type)                                                                            \
    SIM_EXPORT CUresult cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, value_type value, size_t width, \
                                               size_t height) {                                              \
        return fill((struct sim_fill){to, value, (bits) / 8, width, height, pitch}, NULL, false);            \
    }                                                                                                        \
    SIM_EXPORT CUresult cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, value_type value,             \
                                                 size_t width, size_t height, CUstream stream) {             \
        return fill((struct sim_fill){to, value, (bits) / 8, width, height, pitch}, stream, true);           \
    }

FILL_1D(8, unsigned char)
FILL_1D(16, unsigned short)
FILL_1D(32, unsigned int)
FILL_2D(8, unsigned char)
FILL_2D(16, unsigned short)
FILL_2D(32, unsigned int)
