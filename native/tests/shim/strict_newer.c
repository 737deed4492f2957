/* A driver that is newer than the shim's table: it has a version of cuCtxCreate with other arguments, and an
 * allocating function that is in no header. cuGetProcAddress never returns the exported addresses, as if its
 * two tables were made apart. */
#include <string.h>

#include "strict.h"

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned int flags,
                        CUdevice device) {
    (void)parameters, (void)flags;
    return cuDevicePrimaryCtxRetain(context, device);
}

static CUresult create_4(void) {
    return CUDA_SUCCESS;
}
static CUresult create_5(void) {
    return CUDA_SUCCESS;
}
static CUresult allocate_somehow(void) {
    return CUDA_SUCCESS;
}

static void *find(const char *name, int version) {
    if (strcmp(name, "cuCtxCreate") == 0 && version >= 14000) return (void *)create_5;
    if (strcmp(name, "cuCtxCreate") == 0 && version >= 12050) return (void *)create_4;
    return strcmp(name, "cuMemAllocSomehow") == 0 ? (void *)allocate_somehow : NULL;
}

CUresult cuGetProcAddress(const char *name, void **found, int version, cuuint64_t flags) {
    (void)flags;
    *found = find(name, version);
    return *found == NULL ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *name, void **found, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    (void)flags;
    *found = find(name, version);
    if (status == NULL) return CUDA_SUCCESS;
    *status = *found == NULL ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : CU_GET_PROC_ADDRESS_SUCCESS;
    return CUDA_SUCCESS;
}
