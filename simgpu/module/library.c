/* Libraries: modules that belong to no context, and their kernels. */
#include <stdlib.h>

#include "module/module.h"

static CUresult check(CUlibrary library) {
    return library != NULL && sim_is_live(&sim_libraries, library) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUfunction function_of(CUkernel kernel) {
    CUfunction function = (CUfunction)(void *)kernel;
    return sim_is_function(function) ? function : NULL;
}

static void delete(CUlibrary library) {
    sim_module_delete(library->module);
    sim_delete(&sim_libraries, library);
}

static CUresult make(const void *image, CUlibrary *library) {
    SIM_LOCKED();
    CUlibrary made = sim_new(&sim_libraries);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = sim_module_new(image, NULL, &made->module);
    if (result != CUDA_SUCCESS) {
        sim_delete(&sim_libraries, made);
        return result;
    }
    made->module->library = made;
    *library = made;
    CUcontext context;
    if (!sim_modules_are_eager() || sim_current_context(&context) != CUDA_SUCCESS) return CUDA_SUCCESS;
    result = sim_module_place(made->module, context);
    if (result != CUDA_SUCCESS) delete(made);
    return result;
}

SIM_EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *image, CUjit_option *options,
                                      void **values, unsigned int option_count,
                                      CUlibraryOption *library_options, void **library_values,
                                      unsigned int library_option_count) {
    SIM_ENTER();
    if (library == NULL || image == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (option_count > 0 && (options == NULL || values == NULL)) return CUDA_ERROR_INVALID_VALUE;
    if (library_option_count > 0 && library_options == NULL) return CUDA_ERROR_INVALID_VALUE;
    (void)library_values;
    return make(image, library);
}

SIM_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *options,
                                          void **values, unsigned int option_count,
                                          CUlibraryOption *library_options, void **library_values,
                                          unsigned int library_option_count) {
    SIM_ENTER();
    void *image;
    if (library == NULL || path == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_module_read_file(path, &image));
    CUresult result = cuLibraryLoadData(library, image, options, values, option_count, library_options,
                                        library_values, library_option_count);
    free(image);
    return result;
}

SIM_EXPORT CUresult cuLibraryUnload(CUlibrary library) {
    SIM_ENTER();
    SIM_TRY(check(library));
    SIM_LOCKED();
    delete(library);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    SIM_ENTER();
    CUfunction function;
    if (kernel == NULL || name == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(library));
    SIM_LOCKED();
    SIM_TRY(sim_module_function(library->module, name, &function));
    *kernel = (CUkernel)(void *)function;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary library) {
    SIM_ENTER();
    SIM_TRY(check(library));
    return cuModuleGetFunctionCount(count, library->module);
}

SIM_EXPORT CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int count, CUlibrary library) {
    SIM_ENTER();
    SIM_TRY(check(library));
    return cuModuleEnumerateFunctions((CUfunction *)(void *)kernels, count, library->module);
}

SIM_EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    SIM_ENTER_CONTEXT(context);
    if (module == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(library));
    SIM_LOCKED();
    SIM_TRY(sim_module_place(library->module, context));
    *module = library->module;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library,
                                       const char *name) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    if (name == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(library));
    SIM_LOCKED();
    return sim_module_variable(library->module, name, address, bytes);
}

SIM_EXPORT CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *bytes, CUlibrary library,
                                        const char *name) {
    return cuLibraryGetGlobal(address, bytes, library, name);
}

SIM_EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    SIM_ENTER_CONTEXT(context);
    if (function == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (function_of(kernel) == NULL) return CUDA_ERROR_INVALID_HANDLE;
    SIM_LOCKED();
    SIM_TRY(sim_module_place(function_of(kernel)->module, context));
    *function = function_of(kernel);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel) {
    SIM_ENTER();
    if (library == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (function_of(kernel) == NULL) return CUDA_ERROR_INVALID_HANDLE;
    *library = function_of(kernel)->module->library;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuKernelGetName(const char **name, CUkernel kernel) {
    SIM_ENTER();
    return cuFuncGetName(name, (CUfunction)(void *)kernel);
}

SIM_EXPORT CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *bytes) {
    return cuFuncGetParamInfo((CUfunction)(void *)kernel, index, offset, bytes);
}

SIM_EXPORT CUresult cuKernelGetParamCount(CUkernel kernel, size_t *count) {
    return cuFuncGetParamCount((CUfunction)(void *)kernel, count);
}

SIM_EXPORT CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel,
                                         CUdevice device) {
    if (sim_is_ready() && !sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    return cuFuncGetAttribute(value, attribute, (CUfunction)(void *)kernel);
}

SIM_EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                         CUdevice device) {
    if (sim_is_ready() && !sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    return cuFuncSetAttribute((CUfunction)(void *)kernel, attribute, value);
}

SIM_EXPORT CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice device) {
    if (sim_is_ready() && !sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    return cuFuncSetCacheConfig((CUfunction)(void *)kernel, config);
}
