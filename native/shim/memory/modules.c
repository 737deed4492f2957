/* Modules and libraries. The host charges their code, and what is loaded lazily, within about a second, in
 * `overhead_bytes`. A module may also define variables as large as a slice, and no image declares their size
 * (a fat binary is compressed): so a large load is charged with what it lowered the device's free memory by,
 * less what other threads and processes of the job charged meanwhile. A load that does not fit into the slice
 * is undone.
 *
 * Neighbours lower free memory as well, but not repeatedly at the very time of this load: the least of
 * several loads is believed. Memory that is loaded lazily cannot be loaded again to measure it twice, so it
 * is never a reason to refuse a call. Where the job oversubscribes, loading evicts other memory, and nothing
 * is measured.
 *
 * Managed variables are charged when their address is asked for. */
#include <stdbool.h>

#include "functions.h"
#include "memory/paging.h"
#include "slice/charge.h"
#include "slice/holdings.h"
#include "slice/slice.h"

/* A smaller difference is code, or noise. */
#define LARGE_BYTES (64ull * 1024 * 1024)
#define TRIES       3

struct measurement {
    struct pgpu_place place; /* without a GPU: nothing can be measured */
    uint64_t free_bytes, slice_bytes;
};

static bool read_bytes(struct measurement *measurement) {
    size_t free = 0, total = 0;
    if (PGPU_REAL(cuMemGetInfo_v2)(&free, &total) != CUDA_SUCCESS) return false;
    measurement->free_bytes = free;
    measurement->slice_bytes = pgpu_meter_total_bytes(&pgpu_slice_meter, (unsigned)measurement->place.gpu);
    return true;
}

static struct measurement begin(void) {
    struct measurement before = {.place = {.gpu = PGPU_NO_GPU}};
    if (pgpu_paging_is_on() || !pgpu_meter_is_claimed(&pgpu_slice_meter)) return before;
    if (pgpu_slice_current(&before.place) != CUDA_SUCCESS) before.place.gpu = PGPU_NO_GPU;
    if (before.place.gpu != PGPU_NO_GPU && !read_bytes(&before)) before.place.gpu = PGPU_NO_GPU;
    return before;
}

/* Bytes that the driver took and nobody in the job charged. */
static uint64_t taken_bytes(const struct measurement *before) {
    struct measurement now = {.place = before->place};
    if (now.place.gpu == PGPU_NO_GPU || !read_bytes(&now)) return 0;
    int64_t taken = (int64_t)(before->free_bytes - now.free_bytes);
    taken -= (int64_t)(now.slice_bytes - before->slice_bytes);
    return taken > 0 ? (uint64_t)taken : 0;
}

static void note(uint64_t handle, const struct pgpu_place *place, uint64_t bytes) {
    struct pgpu_holding row = {.key = handle ^ ((uint64_t)place->context << 20),
                               .bytes = bytes,
                               .context = (uint64_t)place->context,
                               .module = handle,
                               .count = 1,
                               .kind = PGPU_KIND_MODULE,
                               .gpu = (int8_t)place->gpu};
    pgpu_holdings_put(&row);
}

struct loaded {
    uint64_t handle, key;
};

static bool is_of(const struct pgpu_holding *row, void *context) {
    struct loaded *loaded = context;
    loaded->key = row->key;
    return row->module == loaded->handle;
}

/* Each row is looked for from the start, since the removal of one moves others. */
static CUresult finish_unload(uint64_t handle, CUresult result) {
    struct loaded loaded = {.handle = handle};
    struct pgpu_holding row;
    while (result == CUDA_SUCCESS && pgpu_holdings_visit(PGPU_KIND_MODULE, is_of, &loaded))
        if (pgpu_holdings_take(PGPU_KIND_MODULE, loaded.key, &row)) pgpu_charge_refund(row.gpu, row.bytes);
    return result;
}

/* Whether what a load took is charged; false: it is to be undone, and may be tried again. `least_bytes` is
 * what the tries so far have taken at least. */
static bool has_charged(const struct measurement *before, uint64_t handle, int attempt,
                        uint64_t *least_bytes) {
    struct pgpu_charge charge;
    uint64_t bytes = taken_bytes(before);
    if (bytes < *least_bytes) *least_bytes = bytes;
    if (*least_bytes < LARGE_BYTES) return true;
    if (attempt < TRIES - 1) return false;
    if (pgpu_charge_begin(&charge, before->place.gpu, *least_bytes) != CUDA_SUCCESS) return false;
    note(handle, &before->place, *least_bytes);
    return true;
}

#define LOAD(handle, call, unload)                                                                           \
    uint64_t least_bytes = UINT64_MAX;                                                                       \
    for (int attempt = 0; attempt < TRIES; attempt++) {                                                      \
        struct measurement before = begin();                                                                 \
        CUresult result = call;                                                                              \
        if (result != CUDA_SUCCESS || has_charged(&before, (uint64_t)(*(handle)), attempt, &least_bytes))    \
            return result;                                                                                   \
        unload;                                                                                              \
    }                                                                                                        \
    return CUDA_ERROR_OUT_OF_MEMORY

#define LOAD_MODULE(call)  LOAD(module, call, PGPU_REAL(cuModuleUnload)(*module))
#define LOAD_LIBRARY(call) LOAD(library, call, PGPU_REAL(cuLibraryUnload)(*library))

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

PGPU_EXPORT CUresult cuModuleUnload(CUmodule module) {
    return finish_unload((uint64_t)module, PGPU_REAL(cuModuleUnload)(module));
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

PGPU_EXPORT CUresult cuLibraryUnload(CUlibrary library) {
    return finish_unload((uint64_t)library, PGPU_REAL(cuLibraryUnload)(library));
}

/* A module of a library has a row that names it, and goes with it. */
static uint64_t loaded_with(CUmodule module) {
    struct pgpu_holding row;
    return pgpu_holdings_find(PGPU_KIND_MODULE, (uint64_t)module, &row) ? row.module : (uint64_t)module;
}

static bool is_managed(CUdeviceptr address) {
    uint64_t answer = 0; /* room for whatever the driver takes for a boolean */
    CUresult result = PGPU_REAL(cuPointerGetAttribute)(&answer, CU_POINTER_ATTRIBUTE_IS_MANAGED, address);
    return result == CUDA_SUCCESS && (answer & 0xff) != 0;
}

/* A managed variable takes no memory of a GPU that pages before it is used, so a load shows nothing of it:
 * like other managed memory it is charged in full, when its address is asked for. */
static CUresult charge_variable(uint64_t handle, CUdeviceptr address, size_t bytes) {
    struct pgpu_place place;
    struct pgpu_charge charge;
    struct pgpu_holding row;
    int pages = 0;
    if (!is_managed(address) || pgpu_holdings_find(PGPU_KIND_MODULE, address, &row)) return CUDA_SUCCESS;
    if (pgpu_slice_current(&place) != CUDA_SUCCESS || place.gpu == PGPU_NO_GPU) return CUDA_SUCCESS;
    PGPU_REAL(cuDeviceGetAttribute)
    (&pages, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, place.ordinal);
    if (pages == 0) return CUDA_SUCCESS;
    pgpu_slice_forbid_checkpoint();
    int gpu = pgpu_paging_is_on() ? PGPU_AS_PAGEABLE(place.gpu) : place.gpu;
    CUresult result = pgpu_charge_begin(&charge, gpu, pgpu_slice_granule(bytes));
    if (result != CUDA_SUCCESS) return result;
    row = (struct pgpu_holding){.key = address,
                                .bytes = charge.bytes,
                                .context = (uint64_t)place.context,
                                .module = handle,
                                .count = 1,
                                .kind = PGPU_KIND_MODULE,
                                .gpu = (int8_t)gpu};
    pgpu_holdings_put(&row);
    return result;
}

/* The caller may ask for one of address and size only. */
#define GLOBAL(function, query, handle, owner)                                                               \
    CUdeviceptr found;                                                                                       \
    size_t found_bytes;                                                                                      \
    CUresult result = PGPU_REAL(function)(address, bytes, handle, name);                                     \
    if (result != CUDA_SUCCESS || PGPU_REAL(query)(&found, &found_bytes, handle, name) != CUDA_SUCCESS)      \
        return result;                                                                                       \
    return charge_variable(owner, found, found_bytes)

PGPU_EXPORT CUresult cuModuleGetGlobal(CUdeviceptr_v1 *address, unsigned int *bytes, CUmodule module,
                                       const char *name) {
    GLOBAL(cuModuleGetGlobal, cuModuleGetGlobal_v2, module, loaded_with(module));
}

PGPU_EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module,
                                          const char *name) {
    GLOBAL(cuModuleGetGlobal_v2, cuModuleGetGlobal_v2, module, loaded_with(module));
}

PGPU_EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library,
                                        const char *name) {
    GLOBAL(cuLibraryGetGlobal, cuLibraryGetGlobal, library, (uint64_t)library);
}

PGPU_EXPORT CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *bytes, CUlibrary library,
                                         const char *name) {
    GLOBAL(cuLibraryGetManaged, cuLibraryGetManaged, library, (uint64_t)library);
}

PGPU_EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    struct pgpu_place place;
    CUresult result = PGPU_REAL(cuLibraryGetModule)(module, library);
    if (result != CUDA_SUCCESS || pgpu_slice_current(&place) != CUDA_SUCCESS || place.gpu == PGPU_NO_GPU)
        return result;
    struct pgpu_holding row = {.key = (uint64_t)*module,
                               .context = (uint64_t)place.context,
                               .module = (uint64_t)library,
                               .count = 1,
                               .kind = PGPU_KIND_MODULE,
                               .gpu = (int8_t)place.gpu};
    pgpu_holdings_put(&row);
    return result;
}
