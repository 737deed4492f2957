/* Modules and libraries. The host charges their code within about a second, in `overhead_bytes`. A module may
 * also define variables as large as a slice, and no format declares their size (a fat binary is compressed):
 * if loading it lowered the device's free memory by more than the slice has left, the module is unloaded and
 * the load is refused.
 *
 * Neighbours lower free memory as well, but not repeatedly at the very time of this load. Where the job
 * oversubscribes, neighbours do, and loading evicts other memory: free memory proves nothing there. */
#include <stdbool.h>

#include "functions.h"
#include "memory/paging.h"
#include "slice/slice.h"

/* A smaller difference is code, or noise. */
#define LARGE_BYTES (64ull * 1024 * 1024)
#define TRIES       3

/* 0 if it cannot be determined, as without a context. */
static uint64_t free_bytes(void) {
    size_t free = 0, total = 0;
    return PGPU_REAL(cuMemGetInfo_v2)(&free, &total) == CUDA_SUCCESS ? free : 0;
}

static uint64_t room_bytes(int gpu) {
    uint64_t limit_bytes = pgpu_limit_bytes(pgpu_slice_limit(), (unsigned)gpu);
    uint64_t used_bytes = pgpu_meter_total_bytes(&pgpu_slice_meter, (unsigned)gpu);
    return limit_bytes > used_bytes ? limit_bytes - used_bytes : 0;
}

static bool passes_slice(uint64_t free_before_bytes) {
    if (pgpu_paging_is_on()) return false;
    uint64_t free_now_bytes = free_bytes();
    if (free_before_bytes < free_now_bytes + LARGE_BYTES) return false;
    struct pgpu_place place;
    if (pgpu_slice_current(&place) != CUDA_SUCCESS || place.gpu == PGPU_NO_GPU) return false;
    return free_before_bytes - free_now_bytes > room_bytes(place.gpu);
}

#define LOAD(call, unload)                                                                                   \
    for (int attempt = 0; attempt < TRIES; attempt++) {                                                      \
        uint64_t free_before_bytes = free_bytes();                                                           \
        CUresult result = call;                                                                              \
        if (result != CUDA_SUCCESS || !passes_slice(free_before_bytes)) return result;                       \
        unload;                                                                                              \
    }                                                                                                        \
    return CUDA_ERROR_OUT_OF_MEMORY

#define LOAD_MODULE(call)  LOAD(call, PGPU_REAL(cuModuleUnload)(*module))
#define LOAD_LIBRARY(call) LOAD(call, PGPU_REAL(cuLibraryUnload)(*library))

PGPU_EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path) {
    LOAD_MODULE(PGPU_REAL(cuModuleLoad)(module, path));
}

PGPU_EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    LOAD_MODULE(PGPU_REAL(cuModuleLoadData)(module, image));
}

PGPU_EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
                                        CUjit_option *options, void **values) {
    LOAD_MODULE(PGPU_REAL(cuModuleLoadDataEx)(module, image, count, options, values));
}

PGPU_EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *binary) {
    LOAD_MODULE(PGPU_REAL(cuModuleLoadFatBinary)(module, binary));
}

PGPU_EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options,
                                       void **jit_values, unsigned int jit_count, CUlibraryOption *options,
                                       void **values, unsigned int count) {
    LOAD_LIBRARY(PGPU_REAL(cuLibraryLoadData)(library, code, jit_options, jit_values, jit_count, options,
                                              values, count));
}

PGPU_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit_options,
                                           void **jit_values, unsigned int jit_count,
                                           CUlibraryOption *options, void **values, unsigned int count) {
    LOAD_LIBRARY(PGPU_REAL(cuLibraryLoadFromFile)(library, path, jit_options, jit_values, jit_count, options,
                                                  values, count));
}
