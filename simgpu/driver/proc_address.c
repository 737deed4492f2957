/* cuGetProcAddress: by name, requested version and default stream. */
#include <string.h>

#include "driver/driver.h"

enum variant { PLAIN, PTDS, PTSZ };

struct export {
    const char *name;
    int abi_version;
    enum variant variant;
    void *address;
};

/* Prototypes of stubs are unknown here, so addresses are taken of undeclared types. */
#define CUDA_FUNCTION(symbol, name, abi_version, variant, class)                                             \
    extern char sim_export_##symbol[] __asm__(#symbol);
#include "cuda_functions.def"
#undef CUDA_FUNCTION

static const struct export exports[] = {
#define CUDA_FUNCTION(symbol, name, abi_version, variant, class)                                             \
    {name, abi_version, variant, sim_export_##symbol},
#include "cuda_functions.def"
#undef CUDA_FUNCTION
};

#define EXPORT_COUNT (sizeof(exports) / sizeof(exports[0]))

struct answer {
    void *address;
    bool is_known; /* the name exists, in whatever version */
};

/* The table is sorted by name, so the first of a name is found by halving. */
static size_t first_of(const char *name) {
    size_t low = 0, high = EXPORT_COUNT;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (strcmp(exports[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The newest ABI that is no newer than requested; per-thread variants win where they are requested. */
static struct answer find_export(const char *name, int version, bool wants_per_thread) {
    struct answer answer = {0};
    int best_version = -1;
    for (size_t i = first_of(name); i < EXPORT_COUNT && strcmp(exports[i].name, name) == 0; i++) {
        bool is_per_thread = exports[i].variant != PLAIN;
        int rank = exports[i].abi_version + (is_per_thread ? 1000000 : 0);
        answer.is_known = true;
        if (exports[i].abi_version > version || (is_per_thread && !wants_per_thread) || rank <= best_version)
            continue;
        best_version = rank;
        answer.address = exports[i].address;
    }
    return answer;
}

static CUresult check(const char *symbol, void **address, int version, cuuint64_t flags) {
    const cuuint64_t known =
        CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (symbol == NULL || address == NULL || (flags & ~known) != 0 || flags == known)
        return CUDA_ERROR_INVALID_VALUE;
    return version < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult find(const char *symbol, void **address, int version, cuuint64_t flags,
                     CUdriverProcAddressQueryResult *status) {
    int driver_version;
    CUdriverProcAddressQueryResult unused;
    if (status == NULL) status = &unused;
    SIM_TRY(check(symbol, address, version, flags));
    SIM_TRY(cuDriverGetVersion(&driver_version));
    if (version > driver_version) version = driver_version;
    struct answer answer =
        find_export(symbol, version, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0);
    *address = answer.address;
    *status = answer.address != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
              : answer.is_known      ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                     : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **address, int version, cuuint64_t flags,
                                        CUdriverProcAddressQueryResult *status) {
    return find(symbol, address, version, flags, status);
}

/* The first version of the call reports an unknown symbol by its result. */
SIM_EXPORT CUresult cuGetProcAddress(const char *symbol, void **address, int version, cuuint64_t flags) {
    CUdriverProcAddressQueryResult status;
    SIM_TRY(find(symbol, address, version, flags, &status));
    return status == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
