/* Many threads of one process that initialise CUDA together and then allocate in every way at once. Prints
 * what the slice counts at the end, in bytes, contexts not included. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda_abi.h"

#define THREADS     8
#define ROUNDS      200
#define BLOCK_BYTES (2ull * 1024 * 1024)

static void *driver;
static pthread_barrier_t together;

static void *find(const char *name) {
    void *found = dlsym(driver, name);
    if (found == NULL) exit(2);
    return found;
}

#define CALL(function) ((__typeof__(function) *)find(#function))

/* A refusal is fine, since the slice is small; anything else is not. */
static bool granted(CUresult result) {
    if (result == CUDA_SUCCESS) return true;
    if (result == CUDA_ERROR_OUT_OF_MEMORY) return false;
    fprintf(stderr, "CUDA error %d\n", result);
    exit(1);
}

static void must(CUresult result) {
    if (!granted(result)) exit(3);
}

static void linear(void) {
    CUdeviceptr pointer;
    if (granted(CALL(cuMemAlloc_v2)(&pointer, BLOCK_BYTES))) must(CALL(cuMemFree_v2)(pointer));
}

static void stream_ordered(void) {
    CUdeviceptr pointer;
    if (granted(CALL(cuMemAllocAsync)(&pointer, BLOCK_BYTES, NULL)))
        must(CALL(cuMemFreeAsync)(pointer, NULL));
    must(CALL(cuStreamSynchronize)(NULL));
}

static void virtual(void) {
    CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    if (!granted(CALL(cuMemCreate)(&handle, BLOCK_BYTES, &wanted, 0))) return;
    must(CALL(cuMemAddressReserve)(&address, BLOCK_BYTES, 0, 0, 0));
    must(CALL(cuMemMap)(address, BLOCK_BYTES, 0, handle, 0));
    must(CALL(cuMemRelease)(handle));
    must(CALL(cuMemUnmap)(address, BLOCK_BYTES));
    must(CALL(cuMemAddressFree)(address, BLOCK_BYTES));
}

static void query(void) {
    size_t free_bytes, total_bytes;
    must(CALL(cuMemGetInfo_v2)(&free_bytes, &total_bytes));
}

static void primary(void) {
    CUcontext context;
    must(CALL(cuDevicePrimaryCtxRetain)(&context, 0));
    must(CALL(cuDevicePrimaryCtxRelease_v2)(0));
}

static void *work(void *unused) {
    void (*const kinds[])(void) = {linear, stream_ordered, virtual, query, primary};
    CUcontext context;
    pthread_barrier_wait(&together);
    must(CALL(cuInit)(0));
    must(CALL(cuDevicePrimaryCtxRetain)(&context, 0));
    must(CALL(cuCtxSetCurrent)(context));
    unsigned seed = (unsigned)(uintptr_t)&context;
    for (int round = 0; round < ROUNDS; round++)
        kinds[rand_r(&seed) % (sizeof(kinds) / sizeof(kinds[0]))]();
    return unused;
}

int main(void) {
    pthread_t threads[THREADS];
    size_t free_bytes, total_bytes;
    CUcontext context;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) return 2;
    pthread_barrier_init(&together, NULL, THREADS);
    for (int at = 0; at < THREADS; at++)
        pthread_create(&threads[at], NULL, work, NULL);
    for (int at = 0; at < THREADS; at++)
        pthread_join(threads[at], NULL);
    must(CALL(cuDevicePrimaryCtxRetain)(&context, 0));
    must(CALL(cuCtxSetCurrent)(context));
    must(CALL(cuCtxSynchronize)());
    must(CALL(cuMemGetInfo_v2)(&free_bytes, &total_bytes));
    printf("%zu\n", total_bytes - free_bytes);
    return 0;
}
