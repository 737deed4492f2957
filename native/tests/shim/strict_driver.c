/* A driver of one GPU that does what the simulated one does not: it has green contexts, and it cannot bear to
 * be asked about a pool that is gone. It has no more functions than the tests ask for. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "strict.h"

#define BLOCK_BYTES (2ull << 20)

static cuuint64_t next_address = BLOCK_BYTES, reserved_bytes;
static char pool;
static int is_destroyed;

CUresult cuInit(unsigned int flags) {
    return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetCount(int *count) {
    *count = 1;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    memset(uuid, device, sizeof(*uuid));
    return CUDA_SUCCESS;
}

/* Our own exports are the shim's for us too, so we call none of them. */
static CUresult take_addresses(CUdeviceptr *pointer, size_t bytes) {
    *pointer = next_address;
    next_address += bytes;
    return CUDA_SUCCESS;
}

/* As while the kernel is still taking back what a dead process held: this often, then no more. */
static bool is_still_taking_back(void) {
    static int refusals_left = -1;
    const char *wanted = getenv("PGPU_TEST_REFUSALS");
    if (refusals_left < 0) refusals_left = wanted == NULL ? 0 : atoi(wanted);
    return refusals_left > 0 && refusals_left-- > 0;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    return is_still_taking_back() ? CUDA_ERROR_OUT_OF_MEMORY : take_addresses(pointer, bytes);
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
    (void)pointer;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *current, CUdevice device) {
    (void)device;
    *current = (CUmemoryPool)&pool;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool asked, CUmemPool_attribute attribute, void *value) {
    (void)asked, (void)attribute;
    if (is_destroyed) abort();
    memcpy(value, &reserved_bytes, sizeof(reserved_bytes));
    return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    (void)stream;
    reserved_bytes += bytes;
    return take_addresses(pointer, bytes);
}

CUresult cuMemPoolCreate(CUmemoryPool *made, const CUmemPoolProps *properties) {
    (void)properties;
    *made = (CUmemoryPool)&pool;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool destroyed) {
    (void)destroyed;
    is_destroyed = 1;
    reserved_bytes = 0;
    return strict_let_another_thread_synchronise();
}
