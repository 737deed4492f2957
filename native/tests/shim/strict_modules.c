/* Modules that are nothing but their size. An image is that size in bytes, as text; after a second number,
 * what a neighbour takes of the device, once, while the module is loaded. */
#include <stdlib.h>

#include "strict.h"

static size_t free_now_bytes = (size_t)64 << 30;

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    *free_bytes = free_now_bytes;
    *total_bytes = (size_t)64 << 30;
    return CUDA_SUCCESS;
}

static size_t taken_by_neighbour(const char *image) {
    static int is_taken;
    return is_taken++ ? 0 : strtoull(image, NULL, 10);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    char *rest;
    size_t bytes = strtoull(image, &rest, 10);
    free_now_bytes -= bytes + taken_by_neighbour(rest);
    *module = (CUmodule)bytes;
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
    free_now_bytes += (size_t)module;
    return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options, void **jit_values,
                           unsigned int jit_count, CUlibraryOption *options, void **values,
                           unsigned int count) {
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    free_now_bytes -= strtoull(code, NULL, 10);
    *library = (CUlibrary)strtoull(code, NULL, 10);
    return CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary library) {
    free_now_bytes += (size_t)library;
    return CUDA_SUCCESS;
}
