/* The launches of CUDA 2: shape and arguments are set one by one before. */
#include <string.h>

#include "launch/kernel.h"

#define MOST_ARGUMENT_BYTES 4096u

static CUresult check(CUfunction function) {
    return sim_is_function(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

SIM_EXPORT CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z) {
    SIM_ENTER();
    SIM_LOCKED();
    SIM_TRY(check(function));
    if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
    function->old_block[0] = (unsigned)x;
    function->old_block[1] = (unsigned)y;
    function->old_block[2] = (unsigned)z;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuFuncSetSharedSize(CUfunction function, unsigned int bytes) {
    SIM_ENTER();
    SIM_LOCKED();
    SIM_TRY(check(function));
    function->old_shared_bytes = bytes;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuParamSetSize(CUfunction function, unsigned int bytes) {
    SIM_ENTER();
    SIM_TRY(check(function));
    return bytes <= MOST_ARGUMENT_BYTES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuParamSetv(CUfunction function, int offset, void *data, unsigned int bytes) {
    SIM_ENTER();
    SIM_LOCKED();
    SIM_TRY(check(function));
    if (offset < 0 || data == NULL || bytes > MOST_ARGUMENT_BYTES ||
        (unsigned)offset > MOST_ARGUMENT_BYTES - bytes)
        return CUDA_ERROR_INVALID_VALUE;
    return sim_function_keep_argument(function, (unsigned)offset, data, bytes) ? CUDA_SUCCESS
                                                                               : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT CUresult cuParamSeti(CUfunction function, int offset, unsigned int value) {
    return cuParamSetv(function, offset, &value, sizeof(value));
}

SIM_EXPORT CUresult cuParamSetf(CUfunction function, int offset, float value) {
    return cuParamSetv(function, offset, &value, sizeof(value));
}

SIM_EXPORT CUresult cuLaunchGridAsync(CUfunction function, int grid_x, int grid_y, CUstream stream) {
    SIM_ENTER();
    SIM_TRY(check(function));
    if (grid_x <= 0 || grid_y <= 0) return CUDA_ERROR_INVALID_VALUE;
    const unsigned *block = function->old_block;
    size_t bytes = MOST_ARGUMENT_BYTES;
    void *none[1] = {NULL};
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, function->old_arguments, CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &bytes, CU_LAUNCH_PARAM_END};
    bool has_arguments = function->old_arguments != NULL;
    return cuLaunchKernel(function, (unsigned)grid_x, (unsigned)grid_y, 1, block[0] == 0 ? 1 : block[0],
                          block[1] == 0 ? 1 : block[1], block[2] == 0 ? 1 : block[2],
                          function->old_shared_bytes, stream, has_arguments ? NULL : none,
                          has_arguments ? extra : NULL);
}

SIM_EXPORT CUresult cuLaunchGrid(CUfunction function, int grid_x, int grid_y) {
    return cuLaunchGridAsync(function, grid_x, grid_y, NULL);
}

SIM_EXPORT CUresult cuLaunch(CUfunction function) {
    return cuLaunchGrid(function, 1, 1);
}
