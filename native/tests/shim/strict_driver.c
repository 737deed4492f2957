/* A driver of one GPU for what the simulated one does not do: it has green contexts, and it fails if a pool
 * that is gone is queried. It has only the functions that the tests call. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "strict.h"

#define BLOCK_BYTES (2ull << 20)

static cuuint64_t next_address = BLOCK_BYTES, reserved_bytes;
static char pool;
static int is_destroyed;

CUresult cuInit(unsigned int flags) {
    return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static int number(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value == NULL ? otherwise : atoi(value);
}

CUresult cuDeviceGetCount(int *count) {
    *count = number("PGPU_TEST_DEVICES", 1);
    return CUDA_SUCCESS;
}

/* What another thread may do once the driver's cuInit is over and the shim's is not. */
static void let_another_thread_begin(void) {
    static int is_done;
    if (number("PGPU_TEST_BEGIN_EARLY", 0) == 0 || is_done++) return;
    CUcontext context;
    CUresult (*retain)(CUcontext *, CUdevice) =
        (CUresult (*)(CUcontext *, CUdevice))dlsym(RTLD_DEFAULT, "cuDevicePrimaryCtxRetain");
    if (retain(&context, 0) != CUDA_SUCCESS) abort();
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    let_another_thread_begin();
    memset(uuid, device, sizeof(*uuid));
    return CUDA_SUCCESS;
}

/* Our own exports are the shim's for us too, so we call none of them. */
static CUresult take_addresses(CUdeviceptr *pointer, size_t bytes) {
    *pointer = __atomic_fetch_add(&next_address, bytes, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

/* As while the kernel is still taking back what a dead process held: this often, then no more. */
static bool is_still_taking_back(void) {
    static int refused;
    return __atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED) < number("PGPU_TEST_REFUSALS", 0);
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

static void *destroy(void *unused) {
    CUresult (*destroy_pool)(CUmemoryPool) =
        (CUresult (*)(CUmemoryPool))dlsym(RTLD_DEFAULT, "cuMemPoolDestroy");
    destroy_pool((CUmemoryPool)&pool);
    return unused;
}

/* It has a tenth of a second to do it in while this one is in here, and must not. */
static void let_another_thread_destroy(void) {
    static int is_begun;
    pthread_t other;
    if (__atomic_fetch_add(&is_begun, 1, __ATOMIC_SEQ_CST)) return;
    if (pthread_create(&other, NULL, destroy, NULL) == 0) pthread_detach(other);
    for (int waited = 0; waited < 100 && !__atomic_load_n(&is_destroyed, __ATOMIC_SEQ_CST); waited++)
        usleep(1000);
}

CUresult cuMemPoolGetAttribute(CUmemoryPool asked, CUmemPool_attribute attribute, void *value) {
    (void)asked, (void)attribute;
    if (number("PGPU_TEST_DESTROY_WHEN_ASKED", 0)) let_another_thread_destroy();
    if (__atomic_load_n(&is_destroyed, __ATOMIC_SEQ_CST)) abort();
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
    __atomic_store_n(&is_destroyed, 1, __ATOMIC_SEQ_CST);
    reserved_bytes = 0;
    return strict_let_another_thread_synchronise();
}
