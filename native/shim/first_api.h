/* Two functions of CUDA's first API that cuda_abi.h leaves out; their descriptions had narrower fields. */
#ifndef PGPU_SHIM_FIRST_API_H
#define PGPU_SHIM_FIRST_API_H

#include "cuda_abi.h"

struct pgpu_array_v1 {
    unsigned int width, height;
    CUarray_format format;
    unsigned int channels;
};

struct pgpu_array_3d_v1 {
    unsigned int width, height, depth;
    CUarray_format format;
    unsigned int channels, flags;
};

CUresult cuArrayCreate(CUarray *, const struct pgpu_array_v1 *);
CUresult cuArray3DCreate(CUarray *, const struct pgpu_array_3d_v1 *);

#endif
