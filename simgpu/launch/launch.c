/* Kernel launches. */
#include "stream/capture.h"
#include "launch/kernel.h"

static inline bool is_free_of_time(CUstream stream) {
    return !sim_driver.has_backing && stream->capture == NULL && stream->first == NULL;
}

static __attribute__((noinline)) CUresult queue(struct sim_kernel_launch kernel, CUstream stream,
                                                void **parameters, void **extra) {
    struct sim_work work = {.kind = SIM_WORK_KERNEL, .kernel = kernel};
    sim_kernel_read_arguments(&work.kernel, parameters, extra);
    return sim_submit(stream, &work);
}

/* A library's variables get their memory with the first launch in a context. */
static __attribute__((noinline)) CUresult place_library(CUmodule module, CUcontext context) {
    SIM_LOCKED();
    return sim_module_place(module, context);
}

/* Inline in each of the launches below, so that the shape is checked where it arrives: in registers. */
static inline __attribute__((always_inline)) CUresult launch(const struct sim_kernel_launch *kernel,
                                                             CUstream named, void **parameters,
                                                             void **extra) {
    CUstream stream;
    CUfunction function = kernel->function;
    SIM_ENTER();
    if (!sim_is_function(function)) return CUDA_ERROR_INVALID_HANDLE;
    SIM_TRY(sim_stream_of(named, &stream));
    CUcontext owner = function->module->context;
    if (owner != NULL && sim_root(owner) != sim_root(stream->context)) return CUDA_ERROR_INVALID_HANDLE;
    if (function->module->placed_in == NULL) SIM_TRY(place_library(function->module, stream->context));
    if (parameters == NULL && extra == NULL && function->parameter_count > 0) return CUDA_ERROR_INVALID_VALUE;
    if (parameters != NULL && extra != NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_kernel_check(&sim_driver.config.gpu[stream->context->gpu], kernel));
    if (sim_fault_at_launch != 0) sim_fault_count();
    if (is_free_of_time(stream)) return CUDA_SUCCESS;
    return queue(*kernel, stream, parameters, extra);
}

SIM_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                   unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                   unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                   void **parameters, void **extra) {
    struct sim_kernel_launch kernel = {.function = function,
                                       .grid = {grid_x, grid_y, grid_z},
                                       .block = {block_x, block_y, block_z},
                                       .shared_bytes = shared_bytes};
    return launch(&kernel, stream, parameters, extra);
}

static bool is_cooperative(const CUlaunchConfig *config) {
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
            return config->attrs[i].value.cooperative != 0;
    return false;
}

SIM_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
                                     void **extra) {
    SIM_ENTER();
    if (config == NULL || (config->numAttrs > 0 && config->attrs == NULL)) return CUDA_ERROR_INVALID_VALUE;
    struct sim_kernel_launch kernel = {.function = function,
                                       .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                                       .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
                                       .shared_bytes = config->sharedMemBytes,
                                       .is_cooperative = is_cooperative(config)};
    return launch(&kernel, config->hStream, parameters, extra);
}

SIM_EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                              unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                              unsigned int block_z, unsigned int shared_bytes,
                                              CUstream stream, void **parameters) {
    struct sim_kernel_launch kernel = {.function = function,
                                       .grid = {grid_x, grid_y, grid_z},
                                       .block = {block_x, block_y, block_z},
                                       .shared_bytes = shared_bytes,
                                       .is_cooperative = true};
    return launch(&kernel, stream, parameters, NULL);
}

SIM_EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count,
                                                         unsigned int flags) {
    SIM_ENTER();
    if (list == NULL || count == 0 || flags > 3) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++)
        SIM_TRY(cuLaunchCooperativeKernel(list[i].function, list[i].gridDimX, list[i].gridDimY,
                                          list[i].gridDimZ, list[i].blockDimX, list[i].blockDimY,
                                          list[i].blockDimZ, list[i].sharedMemBytes, list[i].hStream,
                                          list[i].kernelParams));
    return CUDA_SUCCESS;
}
