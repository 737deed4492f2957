/* Times CUDA calls in ns as a program finds them through dlopen and dlsym; prints `name ns` lines. With the
 * word `start` it only initialises CUDA, for timing the start of processes. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_abi.h"

#define ALLOCATION_BYTES 512

static const char *const kernel = "// pgpu.cost * fixed_ns=0\n.version 7.0\n.target sm_50\n.address_size 64\n"
                                  ".visible .entry nothing()\n{\n ret;\n}\n";

static __typeof__(cuMemAlloc_v2) *mem_alloc;
static __typeof__(cuMemFree_v2) *mem_free;
static __typeof__(cuMemGetInfo_v2) *mem_get_info;
static __typeof__(cuLaunchKernel) *launch_kernel;
static __typeof__(cuCtxSynchronize) *synchronise;
static void *driver;

static void *find(const char *name) {
    void *found = dlsym(driver, name);
    if (found == NULL) exit(2);
    return found;
}

static void must(CUresult result) {
    if (result == CUDA_SUCCESS) return;
    fprintf(stderr, "CUDA error %d\n", result);
    exit(1);
}

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static CUfunction begin(void) {
    CUcontext context;
    CUmodule module;
    CUfunction function;
    must(((__typeof__(cuDevicePrimaryCtxRetain) *)find("cuDevicePrimaryCtxRetain"))(&context, 0));
    must(((__typeof__(cuCtxSetCurrent) *)find("cuCtxSetCurrent"))(context));
    must(((__typeof__(cuModuleLoadData) *)find("cuModuleLoadData"))(&module, kernel));
    must(((__typeof__(cuModuleGetFunction) *)find("cuModuleGetFunction"))(&function, module, "nothing"));
    mem_alloc = find("cuMemAlloc_v2");
    mem_free = find("cuMemFree_v2");
    mem_get_info = find("cuMemGetInfo_v2");
    launch_kernel = find("cuLaunchKernel");
    synchronise = find("cuCtxSynchronize");
    return function;
}

static void time_launches(CUfunction function, int count) {
    double from_ns = now_ns();
    for (int at = 0; at < count; at++)
        launch_kernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    printf("launch %.2f\n", (now_ns() - from_ns) / count);
    must(synchronise());
}

static void time_allocations(int count) {
    double from_ns = now_ns();
    for (int at = 0; at < count; at++) {
        CUdeviceptr pointer;
        mem_alloc(&pointer, ALLOCATION_BYTES);
        mem_free(pointer);
    }
    printf("alloc+free %.2f\n", (now_ns() - from_ns) / count);
}

static void time_queries(int count) {
    size_t free_bytes, total_bytes;
    double from_ns = now_ns();
    for (int at = 0; at < count; at++)
        mem_get_info(&free_bytes, &total_bytes);
    printf("mem_info %.2f\n", (now_ns() - from_ns) / count);
}

static void shuffle(CUdeviceptr *pointers, int count) {
    srand(1);
    for (int at = count - 1; at > 0; at--) {
        int other = rand() % (at + 1);
        CUdeviceptr held = pointers[at];
        pointers[at] = pointers[other];
        pointers[other] = held;
    }
}

/* Freed in random order, a tenth of what lives (at least ten), so that about so much lives all the while. */
static void time_frees(int live, int rounds) {
    CUdeviceptr *pointers = calloc((size_t)live, sizeof(*pointers));
    int freed = live / 10 > 10 ? live / 10 : 10;
    double spent_ns = 0;
    for (int at = 0; at < live; at++)
        must(mem_alloc(&pointers[at], ALLOCATION_BYTES));
    for (int round = 0; round < rounds; round++) {
        shuffle(pointers, live);
        double from_ns = now_ns();
        for (int at = 0; at < freed; at++)
            mem_free(pointers[at]);
        spent_ns += now_ns() - from_ns;
        for (int at = 0; at < freed; at++)
            must(mem_alloc(&pointers[at], ALLOCATION_BYTES));
    }
    printf("free_at_%d %.2f\n", live, spent_ns / freed / rounds);
    for (int at = 0; at < live; at++)
        must(mem_free(pointers[at]));
    free(pointers);
}

int main(int count, char **words) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) return 2;
    must(((__typeof__(cuInit) *)find("cuInit"))(0));
    if (count > 1 && strcmp(words[1], "start") == 0) return 0;
    CUfunction function = begin();
    time_launches(function, 200000);
    time_allocations(200000);
    time_queries(20000);
    time_frees(10, 1000);
    time_frees(1000, 30);
    time_frees(40000, 2);
    return 0;
}
