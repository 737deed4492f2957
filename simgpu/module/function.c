/* Attributes of functions, and how many of their blocks fit. */
#include "launch/kernel.h"

static CUresult check(CUfunction function) {
    return sim_is_function(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

SIM_EXPORT CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    SIM_ENTER();
    if (value == NULL || (unsigned)attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(function));
    *value = function->attribute[attribute];
    return CUDA_SUCCESS;
}

static bool is_settable(CUfunction_attribute attribute) {
    return attribute >= CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && attribute < CU_FUNC_ATTRIBUTE_MAX;
}

SIM_EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    SIM_ENTER();
    SIM_TRY(check(function));
    if (!is_settable(attribute)) return CUDA_ERROR_INVALID_VALUE;
    bool is_size = attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    uint64_t most_bytes = sim_driver.config.gpu[sim_driver.gpu_of_device[0]].shared_bytes_per_sm;
    if (is_size && (value < 0 || (uint64_t)value > most_bytes)) return CUDA_ERROR_INVALID_VALUE;
    function->attribute[attribute] = value;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
    SIM_ENTER();
    SIM_TRY(check(function));
    if ((unsigned)config > CU_FUNC_CACHE_PREFER_EQUAL) return CUDA_ERROR_INVALID_VALUE;
    function->cache = config;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuFuncSetSharedMemConfig(CUfunction function, CUsharedconfig config) {
    SIM_ENTER();
    SIM_TRY(check(function));
    return (unsigned)config <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_SUCCESS
                                                                         : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuFuncGetModule(CUmodule *module, CUfunction function) {
    SIM_ENTER();
    if (module == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(function));
    *module = function->module;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuFuncGetName(const char **name, CUfunction function) {
    SIM_ENTER();
    if (name == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(function));
    *name = function->name;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *bytes) {
    SIM_ENTER();
    if (offset == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(function));
    if (index >= function->parameter_count) return CUDA_ERROR_INVALID_VALUE;
    *offset = function->parameters[index].offset;
    if (bytes != NULL) *bytes = function->parameters[index].bytes;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuFuncGetParamCount(CUfunction function, size_t *count) {
    SIM_ENTER();
    if (count == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(function));
    *count = function->parameter_count;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuFuncLoad(CUfunction function) {
    SIM_ENTER();
    return check(function);
}

SIM_EXPORT CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function) {
    SIM_ENTER();
    if (state == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(function));
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
}

static const struct sim_gpu *gpu_of(CUcontext context) {
    return &sim_driver.config.gpu[context->gpu];
}

SIM_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function,
                                                                         int block_threads,
                                                                         size_t shared_bytes,
                                                                         unsigned int flags) {
    SIM_ENTER_CONTEXT(context);
    if (blocks == NULL || block_threads <= 0 || flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(function));
    *blocks = (int)sim_blocks_per_sm(gpu_of(context), (unsigned)block_threads, shared_bytes);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function,
                                                                int block_threads, size_t shared_bytes) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_threads, shared_bytes,
                                                                0);
}

SIM_EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function,
                                                              CUoccupancyB2DSize shared_of_block,
                                                              size_t shared_bytes, int most_threads,
                                                              unsigned int flags) {
    SIM_ENTER_CONTEXT(context);
    if (grid == NULL || block == NULL || flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(function));
    int threads = most_threads > 0 && most_threads < 1024 ? most_threads : 1024;
    if (shared_of_block != NULL) shared_bytes = shared_of_block(threads);
    *block = threads;
    unsigned blocks = sim_blocks_per_sm(gpu_of(context), (unsigned)threads, shared_bytes);
    *grid = (int)(gpu_of(context)->sm_count * blocks);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function,
                                                     CUoccupancyB2DSize shared_of_block, size_t shared_bytes,
                                                     int most_threads) {
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, shared_of_block, shared_bytes,
                                                     most_threads, 0);
}

SIM_EXPORT CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction function, int blocks,
                                                            int block_threads) {
    SIM_ENTER_CONTEXT(context);
    if (bytes == NULL || blocks <= 0 || block_threads <= 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(function));
    *bytes = gpu_of(context)->shared_bytes_per_sm / (unsigned)blocks;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction function,
                                                       const CUlaunchConfig *config) {
    SIM_ENTER_CONTEXT(context);
    if (size == NULL || config == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(function));
    *size = gpu_of(context)->compute_major >= 9 ? 8 : 1;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function,
                                                 const CUlaunchConfig *config) {
    SIM_ENTER_CONTEXT(context);
    if (clusters == NULL || config == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(function));
    unsigned threads = config->blockDimX * config->blockDimY * config->blockDimZ;
    *clusters = (int)(gpu_of(context)->sm_count *
                      sim_blocks_per_sm(gpu_of(context), threads, config->sharedMemBytes));
    return CUDA_SUCCESS;
}
