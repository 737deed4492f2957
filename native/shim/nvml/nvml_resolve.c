/* Loading the real NVML, at nvmlInit. No lock is held meanwhile: threads that arrive together load it
 * together and publish the same addresses. */
#include <dlfcn.h>
#include <stddef.h>

#include "nvml/nvml_devices.h"
#include "nvml/nvml_functions.h"
#include "slice/report.h"

const struct pgpu_limit *pgpu_nvml_limit;

/* All texts are one block and each is found by its offset: 430 pointers would cost as many relocations in
 * every program that loads the shim. */
static const struct {
#define NVML_FUNCTION(symbol) char symbol##_[sizeof(#symbol)];
#include "nvml_functions.def"
#undef NVML_FUNCTION
} texts = {
#define NVML_FUNCTION(symbol) #symbol,
#include "nvml_functions.def"
#undef NVML_FUNCTION
};
static_assert(sizeof(texts) <= UINT16_MAX, "offsets are 16 bits wide");

static const uint16_t text_at[] = {
#define NVML_FUNCTION(symbol) offsetof(__typeof__(texts), symbol##_),
#include "nvml_functions.def"
#undef NVML_FUNCTION
};

static __typeof__(nvmlErrorString) *real_error_string;

/* NVML's counterpart of cuGetExportTable: it is in no header, and nvidia-smi needs it. */
__attribute__((visibility("default"))) nvmlReturn_t nvmlInternalGetExportTable(const void **table,
                                                                               const void *table_id);
static __typeof__(nvmlInternalGetExportTable) *real_export_table;

static nvmlReturn_t lack(void) {
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

static nvmlReturn_t open_limit(void) {
    if (__atomic_load_n(&pgpu_nvml_limit, __ATOMIC_ACQUIRE) != NULL) return NVML_SUCCESS;
    const struct pgpu_limit *limit = NULL, *none = NULL;
    enum pgpu_limit_status status = pgpu_limit_open((const void *)lack, &limit);
    if (status != PGPU_LIMIT_OK) {
        pgpu_report_refusal(pgpu_limit_explain(status), NULL);
        return NVML_ERROR_NO_PERMISSION;
    }
    /* The first mapping wins. Those of threads that arrived together stay mapped: another thread may read
     * them. */
    __atomic_compare_exchange_n(&pgpu_nvml_limit, &none, limit, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return NVML_SUCCESS;
}

/* dlopen matches an absolute path by inode, not by SONAME, so it returns the shim only where the path leads
 * to the shim's own file. A container without NVIDIA's `utility` capability has no NVML, and its path is
 * empty. */
static void *open_library(void) {
    const char *path = pgpu_nvml_limit->real_nvml_path;
    if (path[0] == '\0') return NULL;
    void *library = path[0] == '/' ? dlopen(path, RTLD_LOCAL | RTLD_NOW) : NULL;
    if (library == NULL) pgpu_report_refusal("the real NVML cannot be loaded", path);
    if (library != NULL && dlsym(library, "nvmlInit_v2") == (void *)nvmlInit_v2) {
        pgpu_report_refusal("the real NVML's path leads back to pgpu", path);
        return NULL;
    }
    return library;
}

static void publish(void *library) {
    __atomic_store_n(&real_error_string, (__typeof__(nvmlErrorString) *)dlsym(library, "nvmlErrorString"),
                     __ATOMIC_RELEASE);
    __atomic_store_n(&real_export_table, dlsym(library, "nvmlInternalGetExportTable"), __ATOMIC_RELEASE);
    for (unsigned function = 0; function < PGPU_NVML_COUNT; function++) {
        void *real = dlsym(library, (const char *)&texts + text_at[function]);
        __atomic_store_n(&pgpu_nvml_real[function], real == NULL ? (void *)lack : real, __ATOMIC_RELEASE);
    }
}

static nvmlReturn_t load(void) {
    static bool is_loaded;
    if (__atomic_load_n(&is_loaded, __ATOMIC_ACQUIRE)) return NVML_SUCCESS;
    nvmlReturn_t result = open_limit();
    if (result != NVML_SUCCESS) return result;
    void *library = open_library();
    if (library == NULL) return NVML_ERROR_LIBRARY_NOT_FOUND;
    publish(library);
    __atomic_store_n(&is_loaded, true, __ATOMIC_RELEASE);
    return NVML_SUCCESS;
}

static nvmlReturn_t read_devices_after(nvmlReturn_t result) {
    if (result == NVML_SUCCESS) pgpu_nvml_find_devices();
    return result;
}

nvmlReturn_t nvmlInit_v2(void) {
    nvmlReturn_t result = load();
    return result == NVML_SUCCESS ? read_devices_after(PGPU_NVML_REAL(nvmlInit_v2)()) : result;
}

nvmlReturn_t nvmlInit(void) {
    nvmlReturn_t result = load();
    return result == NVML_SUCCESS ? read_devices_after(PGPU_NVML_REAL(nvmlInit)()) : result;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    nvmlReturn_t result = load();
    return result == NVML_SUCCESS ? read_devices_after(PGPU_NVML_REAL(nvmlInitWithFlags)(flags)) : result;
}

/* These three work without nvmlInit. */
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    nvmlReturn_t result = load();
    return result == NVML_SUCCESS ? PGPU_NVML_REAL(nvmlSystemGetCudaDriverVersion)(version) : result;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    nvmlReturn_t result = load();
    return result == NVML_SUCCESS ? PGPU_NVML_REAL(nvmlSystemGetCudaDriverVersion_v2)(version) : result;
}

nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *table_id) {
    nvmlReturn_t result = load();
    if (result != NVML_SUCCESS) return result;
    __typeof__(nvmlInternalGetExportTable) *real = __atomic_load_n(&real_export_table, __ATOMIC_ACQUIRE);
    return real != NULL ? real(table, table_id) : NVML_ERROR_FUNCTION_NOT_FOUND;
}

/* Texts for the results of nvmlInit where the real library cannot be loaded. */
static const char *own_words(nvmlReturn_t result) {
    if (result == NVML_SUCCESS) return "Success";
    if (result == NVML_ERROR_UNINITIALIZED) return "Uninitialized";
    if (result == NVML_ERROR_NO_PERMISSION) return "Insufficient Permissions";
    return result == NVML_ERROR_LIBRARY_NOT_FOUND ? "NVML Shared Library Not Found" : "Unknown Error";
}

const char *nvmlErrorString(nvmlReturn_t result) {
    __typeof__(nvmlErrorString) *real = __atomic_load_n(&real_error_string, __ATOMIC_ACQUIRE);
    return real == NULL ? own_words(result) : real(result);
}
