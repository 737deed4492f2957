/* Settings that a context keeps and answers; they change nothing in a device that computes nothing. */
#include "context/context.h"

SIM_EXPORT CUresult cuCtxGetFlags(unsigned int *flags) {
    SIM_ENTER_CONTEXT(context);
    if (flags == NULL) return CUDA_ERROR_INVALID_VALUE;
    *flags = context->flags;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxSetFlags(unsigned int flags) {
    SIM_ENTER_CONTEXT(context);
    if ((flags & ~(unsigned)CU_CTX_FLAGS_MASK) != 0) return CUDA_ERROR_INVALID_VALUE;
    context->flags = flags;
    return CUDA_SUCCESS;
}

static bool is_limit(CUlimit limit) {
    return (unsigned)limit < CU_LIMIT_MAX;
}

SIM_EXPORT CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
    SIM_ENTER_CONTEXT(context);
    if (value == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!is_limit(limit)) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = context->limit[limit];
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    SIM_ENTER_CONTEXT(context);
    if (!is_limit(limit)) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    context->limit[limit] = value;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxGetCacheConfig(CUfunc_cache *config) {
    SIM_ENTER_CONTEXT(context);
    if (config == NULL) return CUDA_ERROR_INVALID_VALUE;
    *config = context->cache;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
    SIM_ENTER_CONTEXT(context);
    if ((unsigned)config > CU_FUNC_CACHE_PREFER_EQUAL) return CUDA_ERROR_INVALID_VALUE;
    context->cache = config;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxGetSharedMemConfig(CUsharedconfig *config) {
    SIM_ENTER_CONTEXT(context);
    if (config == NULL) return CUDA_ERROR_INVALID_VALUE;
    *config = context->shared;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
    SIM_ENTER_CONTEXT(context);
    if ((unsigned)config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE) return CUDA_ERROR_INVALID_VALUE;
    context->shared = config;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    if (least != NULL) *least = 0;
    if (greatest != NULL) *greatest = -5;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxResetPersistingL2Cache(void) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    return CUDA_SUCCESS;
}
