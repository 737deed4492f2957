/* cuGetProcAddress: the real driver answers first, and what it hands out is wrapped. */
#include <stdbool.h>

#include "functions.h"
#include "table.h"

/* False: the driver has it, in a version that the shim knows nothing of. */
static bool wrap(const char *name, void **found, int cuda_version, cuuint64_t flags) {
    if (name == NULL || found == NULL || *found == NULL) return true;
    *found = pgpu_table_wrap(name, cuda_version, flags, *found);
    return *found != NULL;
}

PGPU_EXPORT CUresult cuGetProcAddress(const char *name, void **found, int cuda_version, cuuint64_t flags) {
    CUresult result = PGPU_REAL(cuGetProcAddress)(name, found, cuda_version, flags);
    if (result != CUDA_SUCCESS || wrap(name, found, cuda_version, flags)) return result;
    return CUDA_ERROR_NOT_FOUND;
}

PGPU_EXPORT CUresult cuGetProcAddress_v2(const char *name, void **found, int cuda_version, cuuint64_t flags,
                                         CUdriverProcAddressQueryResult *status) {
    CUresult result = PGPU_REAL(cuGetProcAddress_v2)(name, found, cuda_version, flags, status);
    if (result != CUDA_SUCCESS || wrap(name, found, cuda_version, flags)) return result;
    if (status != NULL) *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    return result;
}
