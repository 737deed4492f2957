/* The driver's calls on modules. */
#include <stdlib.h>

#include "module/module.h"

SIM_EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    SIM_ENTER_CONTEXT(context);
    if (module == NULL || image == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    SIM_TRY(sim_module_new(image, context, module));
    CUresult result = sim_module_place(*module, context);
    if (result != CUDA_SUCCESS) sim_module_delete(*module);
    return result;
}

SIM_EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int option_count,
                                       CUjit_option *options, void **values) {
    if (option_count > 0 && (options == NULL || values == NULL)) return CUDA_ERROR_INVALID_VALUE;
    return cuModuleLoadData(module, image);
}

SIM_EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    return cuModuleLoadData(module, image);
}

SIM_EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path) {
    SIM_ENTER();
    void *image;
    if (module == NULL || path == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_module_read_file(path, &image));
    CUresult result = cuModuleLoadData(module, image);
    free(image);
    return result;
}

static CUresult check(CUmodule module) {
    return module != NULL && sim_is_live(&sim_modules, module) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

SIM_EXPORT CUresult cuModuleUnload(CUmodule module) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    SIM_TRY(check(module));
    if (module->library != NULL) return CUDA_ERROR_INVALID_HANDLE;
    SIM_LOCKED();
    sim_module_delete(module);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    SIM_ENTER();
    if (function == NULL || name == NULL || *name == '\0') return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(module));
    SIM_LOCKED();
    return sim_module_function(module, name, function);
}

SIM_EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module,
                                         const char *name) {
    SIM_ENTER();
    if (name == NULL || *name == '\0') return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(module));
    SIM_LOCKED();
    return sim_module_variable(module, name, address, bytes);
}

SIM_EXPORT CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
    SIM_ENTER();
    if (mode == NULL) return CUDA_ERROR_INVALID_VALUE;
    *mode = sim_modules_are_eager() ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

static unsigned count_functions(CUmodule module) {
    unsigned count = 0;
    for (CUfunction function = module->functions; function != NULL; function = function->next)
        count++;
    return count;
}

SIM_EXPORT CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule module) {
    SIM_ENTER();
    if (count == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(module));
    SIM_LOCKED();
    *count = count_functions(module);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int count, CUmodule module) {
    SIM_ENTER();
    if (functions == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(module));
    SIM_LOCKED();
    CUfunction function = module->functions;
    for (unsigned i = 0; i < count && function != NULL; i++, function = function->next)
        functions[i] = function;
    return CUDA_SUCCESS;
}
