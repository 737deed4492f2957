/* Modules and libraries are charged when the driver takes their memory (loading.h): at the load, at the first
 * look-up of a function or variable, or at the first launch (first_launches.h).
 *
 * A load that does not fit into the slice is undone. What comes later cannot be undone without the module: it
 * is counted past the slice, the call is refused, and so are all that follow until there is room; where it is
 * large, the module is unloaded.
 *
 * Managed variables are charged when their address is asked for. */
#include <sched.h>
#include <stdbool.h>

#include "functions.h"
#include "memory/first_launches.h"
#include "memory/loading.h"
#include "memory/paging.h"
#include "slice/charge.h"
#include "slice/holdings.h"
#include "slice/slice.h"

/* More than the code of a few kernels. */
#define LARGE_BYTES (8ull * 1024 * 1024)
/* Loads that must show a difference which others may have caused. */
#define TRIES 3
/* Loads of one module while other threads load as well: what they took is not told apart. */
#define MOST_TRIES 64

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
    if (result == CUDA_SUCCESS) pgpu_first_launches_forget(handle);
    while (result == CUDA_SUCCESS && pgpu_holdings_visit(PGPU_KIND_MODULE, is_of, &loaded))
        if (pgpu_holdings_take(PGPU_KIND_MODULE, loaded.key, &row)) pgpu_charge_refund(row.gpu, row.bytes);
    return result;
}

/* One module while it is loaded, perhaps repeatedly. */
struct load {
    struct pgpu_loading before;
    uint64_t least_bytes; /* that any try has taken */
    unsigned tries, number;
    bool is_alone, may_retry;
};

/* Of all threads. */
static unsigned loads_begun, loads_ended;

static void begin_load(struct load *load) {
    load->number = __atomic_fetch_add(&loads_begun, 1, __ATOMIC_SEQ_CST);
    load->is_alone = __atomic_load_n(&loads_ended, __ATOMIC_SEQ_CST) == load->number;
    load->tries++;
    load->before = pgpu_loading_begin();
}

/* `has_taken`: not all of it was taken before this load, which then may be refused. */
static bool is_charged(const struct load *load, uint64_t handle, bool has_taken) {
    struct pgpu_charge charge;
    if (load->least_bytes == 0) return true;
    CUresult result = pgpu_charge_begin(&charge, load->before.place.gpu, load->least_bytes);
    if (result != CUDA_SUCCESS && has_taken) return false;
    if (result != CUDA_SUCCESS) pgpu_charge_regardless(load->before.place.gpu, load->least_bytes);
    pgpu_loading_note(&load->before, handle, load->least_bytes, false);
    return true;
}

/* Whether what a load took is charged; false: it is to be undone, and may be tried again. */
static bool finish_load(struct load *load, uint64_t handle) {
    struct pgpu_loaded loaded = pgpu_loading_end(&load->before);
    bool was_alone = load->is_alone && __atomic_load_n(&loads_begun, __ATOMIC_SEQ_CST) == load->number + 1;
    if (loaded.is_proven || loaded.bytes < load->least_bytes) load->least_bytes = loaded.bytes;
    bool must_repeat = !loaded.is_proven && load->least_bytes > 0 && load->tries < TRIES;
    load->may_retry = must_repeat || (loaded.is_proven && !was_alone && load->tries < MOST_TRIES);
    return !must_repeat && is_charged(load, handle, loaded.since_begin > 0);
}

/* Others are alone only once this load is charged or undone. */
#define LOAD(handle, call, unload)                                                                           \
    struct load load = {.least_bytes = UINT64_MAX};                                                          \
    do {                                                                                                     \
        if (load.tries > 0) sched_yield();                                                                   \
        begin_load(&load);                                                                                   \
        CUresult result = call;                                                                              \
        bool is_done = result != CUDA_SUCCESS || finish_load(&load, (uint64_t)(*(handle)));                  \
        if (!is_done) unload;                                                                                \
        __atomic_fetch_add(&loads_ended, 1, __ATOMIC_SEQ_CST);                                               \
        if (is_done) return result;                                                                          \
    } while (load.may_retry);                                                                                \
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

/* A module that was unloaded here stays known until its program unloads it. */
static bool was_unloaded(uint64_t handle) {
    struct pgpu_holding row;
    return pgpu_holdings_take(PGPU_KIND_UNLOADED, handle, &row);
}

PGPU_EXPORT CUresult cuModuleUnload(CUmodule module) {
    if (was_unloaded((uint64_t)module)) return CUDA_SUCCESS;
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
    if (was_unloaded((uint64_t)library)) return CUDA_SUCCESS;
    return finish_unload((uint64_t)library, PGPU_REAL(cuLibraryUnload)(library));
}

/* A module of a library has a row that names it, and goes with it. */
static uint64_t loaded_with(CUmodule module) {
    struct pgpu_holding row;
    return pgpu_holdings_find(PGPU_KIND_MODULE, (uint64_t)module, &row) ? row.module : (uint64_t)module;
}

static void unload(uint64_t handle, bool is_library) {
    struct pgpu_holding row = {.key = handle, .count = 1, .kind = PGPU_KIND_UNLOADED, .gpu = PGPU_NO_GPU};
    CUresult result = is_library ? PGPU_REAL(cuLibraryUnload)((CUlibrary)handle)
                                 : PGPU_REAL(cuModuleUnload)((CUmodule)handle);
    if (finish_unload(handle, result) == CUDA_SUCCESS) pgpu_holdings_put(&row);
}

/* After a call that may have loaded something of `handle`, which a repeated call finds loaded. */
static CUresult charge_loaded(const struct pgpu_loading *before, uint64_t handle, bool is_library) {
    struct pgpu_charge charge;
    struct pgpu_loaded loaded = pgpu_loading_end(before);
    if (loaded.bytes == 0 || !loaded.is_proven) return CUDA_SUCCESS;
    if (loaded.bytes < LARGE_BYTES || loaded.since_begin < LARGE_BYTES) {
        CUresult result = pgpu_loading_charge(before, handle, loaded.bytes);
        return loaded.since_begin > 0 ? result : CUDA_SUCCESS;
    }
    CUresult result = pgpu_charge_begin(&charge, before->place.gpu, loaded.bytes);
    if (result == CUDA_SUCCESS)
        pgpu_loading_note(before, handle, loaded.bytes, true);
    else
        unload(handle, is_library);
    return result;
}

#define LOADED_LAZILY(handle, is_library, call)                                                              \
    struct pgpu_loading before = pgpu_loading_begin();                                                       \
    if (pgpu_loading_is_barred(&before.place)) return CUDA_ERROR_OUT_OF_MEMORY;                              \
    CUresult result = call;                                                                                  \
    return result == CUDA_SUCCESS ? charge_loaded(&before, (uint64_t)(handle), is_library) : result

PGPU_EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    uint64_t owner = loaded_with(module);
    struct pgpu_loading before = pgpu_loading_begin();
    if (pgpu_loading_is_barred(&before.place)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = PGPU_REAL(cuModuleGetFunction)(function, module, name);
    if (result != CUDA_SUCCESS || !pgpu_first_launches_add(*function, owner)) return result;
    return charge_loaded(&before, owner, owner != (uint64_t)module);
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
#define GLOBAL(function, query, handle, owner, is_library)                                                   \
    CUdeviceptr found;                                                                                       \
    size_t found_bytes;                                                                                      \
    struct pgpu_loading before = pgpu_loading_begin();                                                       \
    if (pgpu_loading_is_barred(&before.place)) return CUDA_ERROR_OUT_OF_MEMORY;                              \
    CUresult result = PGPU_REAL(function)(address, bytes, handle, name);                                     \
    if (result == CUDA_SUCCESS) result = charge_loaded(&before, owner, is_library);                          \
    if (result != CUDA_SUCCESS || PGPU_REAL(query)(&found, &found_bytes, handle, name) != CUDA_SUCCESS)      \
        return result;                                                                                       \
    return charge_variable(owner, found, found_bytes)

PGPU_EXPORT CUresult cuModuleGetGlobal(CUdeviceptr_v1 *address, unsigned int *bytes, CUmodule module,
                                       const char *name) {
    uint64_t owner = loaded_with(module);
    GLOBAL(cuModuleGetGlobal, cuModuleGetGlobal_v2, module, owner, owner != (uint64_t)module);
}

PGPU_EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module,
                                          const char *name) {
    uint64_t owner = loaded_with(module);
    GLOBAL(cuModuleGetGlobal_v2, cuModuleGetGlobal_v2, module, owner, owner != (uint64_t)module);
}

PGPU_EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library,
                                        const char *name) {
    GLOBAL(cuLibraryGetGlobal, cuLibraryGetGlobal, library, (uint64_t)library, true);
}

PGPU_EXPORT CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *bytes, CUlibrary library,
                                         const char *name) {
    GLOBAL(cuLibraryGetManaged, cuLibraryGetManaged, library, (uint64_t)library, true);
}

static CUresult get_module(CUmodule *module, CUlibrary library) {
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

PGPU_EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    LOADED_LAZILY(library, true, get_module(module, library));
}

/* The library of a kernel, or NULL. */
static CUlibrary library_of(CUkernel kernel) {
    CUlibrary library = NULL;
    PGPU_REAL(cuKernelGetLibrary)(&library, kernel);
    return library;
}

/* A kernel can be launched like a function. */
PGPU_EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    CUresult result = PGPU_REAL(cuLibraryGetKernel)(kernel, library, name);
    if (result == CUDA_SUCCESS) pgpu_first_launches_add((CUfunction)(void *)*kernel, (uint64_t)library);
    return result;
}

static CUresult get_function(CUfunction *function, CUkernel kernel, CUlibrary library) {
    CUresult result = PGPU_REAL(cuKernelGetFunction)(function, kernel);
    if (result == CUDA_SUCCESS) pgpu_first_launches_add(*function, (uint64_t)library);
    return result;
}

PGPU_EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    CUlibrary library = library_of(kernel);
    LOADED_LAZILY(library, library != NULL, get_function(function, kernel, library));
}
