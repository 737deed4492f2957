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
static __typeof__(cuLaunchKernel) *launch_kernel, *launch_kernel_of_thread;
static __typeof__(cuGraphLaunch) *launch_graph;
static __typeof__(cuMemcpyHtoDAsync_v2) *copy;
static __typeof__(cuCtxSynchronize) *synchronise;
static CUstream streams[8];
static CUfunction function;
static CUgraphExec graph;
static CUdeviceptr memory;
static char from_host[64];
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

static void begin(void) {
    CUcontext context;
    CUmodule module;
    must(((__typeof__(cuDevicePrimaryCtxRetain) *)find("cuDevicePrimaryCtxRetain"))(&context, 0));
    must(((__typeof__(cuCtxSetCurrent) *)find("cuCtxSetCurrent"))(context));
    must(((__typeof__(cuModuleLoadData) *)find("cuModuleLoadData"))(&module, kernel));
    must(((__typeof__(cuModuleGetFunction) *)find("cuModuleGetFunction"))(&function, module, "nothing"));
    mem_alloc = find("cuMemAlloc_v2");
    mem_free = find("cuMemFree_v2");
    mem_get_info = find("cuMemGetInfo_v2");
    launch_kernel = find("cuLaunchKernel");
    launch_kernel_of_thread = find("cuLaunchKernel_ptsz");
    launch_graph = find("cuGraphLaunch");
    copy = find("cuMemcpyHtoDAsync_v2");
    synchronise = find("cuCtxSynchronize");
}

static CUresult launch(CUstream stream) {
    return launch_kernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static CUresult launch_of_thread(CUstream stream) {
    return launch_kernel_of_thread(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static CUresult launch_graph_into(CUstream stream) {
    return launch_graph(graph, stream);
}

static CUresult copy_into(CUstream stream) {
    return copy(memory, from_host, sizeof(from_host), stream);
}

/* Into so many streams in turns; 0: into the default stream. A call that is refused is soon over: none may
 * be. */
static void time_calls(const char *name, CUresult (*call)(CUstream stream), unsigned used, int count) {
    CUstream of_turn[8] = {NULL};
    for (unsigned at = 0; at < used; at++)
        of_turn[at] = streams[at];
    unsigned mask = used == 0 ? 0 : used - 1;
    int all = 0;
    for (int at = 0; at < count / 10; at++)
        must(call(of_turn[(unsigned)at & mask]));
    double from_ns = now_ns();
    for (int at = 0; at < count; at++)
        all |= (int)call(of_turn[(unsigned)at & mask]);
    double lasted_ns = now_ns() - from_ns;
    must((CUresult)all);
    printf("%s %.2f\n", name, lasted_ns / count);
    must(synchronise());
}

static void time_launches(int count) {
    time_calls("launch", launch, 0, count);
    time_calls("launch_per_thread", launch_of_thread, 0, count);
    time_calls("launch_streams_1", launch, 1, count);
    time_calls("launch_streams_2", launch, 2, count);
    time_calls("launch_streams_4", launch, 4, count);
    time_calls("launch_streams_8", launch, 8, count);
    time_calls("launch_graph", launch_graph_into, 1, count / 2);
    time_calls("copy_async", copy_into, 1, count / 2);
}

/* From the first blocking stream on, an event in the legacy default stream is a barrier. */
static void time_launches_beside_blocking(int count) {
    CUstream blocking;
    must(((__typeof__(cuStreamCreate) *)find("cuStreamCreate"))(&blocking, CU_STREAM_DEFAULT));
    time_calls("launch_beside_blocking", launch, 0, count);
}

static void make_graph(void) {
    CUgraph template;
    CUgraphNode node;
    CUDA_KERNEL_NODE_PARAMS_v1 shape = {.func = function,
                                        .gridDimX = 1,
                                        .gridDimY = 1,
                                        .gridDimZ = 1,
                                        .blockDimX = 1,
                                        .blockDimY = 1,
                                        .blockDimZ = 1};
    must(((__typeof__(cuGraphCreate) *)find("cuGraphCreate"))(&template, 0));
    must(
        ((__typeof__(cuGraphAddKernelNode) *)find("cuGraphAddKernelNode"))(&node, template, NULL, 0, &shape));
    must(((__typeof__(cuGraphInstantiateWithFlags) *)find("cuGraphInstantiateWithFlags"))(&graph, template,
                                                                                          0));
    must(mem_alloc(&memory, sizeof(from_host)));
}

static void make_streams(void) {
    __typeof__(cuStreamCreate) *make = find("cuStreamCreate");
    for (unsigned at = 0; at < sizeof(streams) / sizeof(streams[0]); at++)
        must(make(&streams[at], CU_STREAM_NON_BLOCKING));
}

static void time_allocations(int count) {
    int all = 0;
    double from_ns = now_ns();
    for (int at = 0; at < count; at++) {
        CUdeviceptr pointer = 0;
        all |= (int)mem_alloc(&pointer, ALLOCATION_BYTES);
        all |= (int)mem_free(pointer);
    }
    double lasted_ns = now_ns() - from_ns;
    must((CUresult)all);
    printf("alloc+free %.2f\n", lasted_ns / count);
}

static void time_queries(int count) {
    size_t free_bytes, total_bytes;
    int all = 0;
    double from_ns = now_ns();
    for (int at = 0; at < count; at++)
        all |= (int)mem_get_info(&free_bytes, &total_bytes);
    double lasted_ns = now_ns() - from_ns;
    must((CUresult)all);
    printf("mem_info %.2f\n", lasted_ns / count);
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
        int all = 0;
        double from_ns = now_ns();
        for (int at = 0; at < freed; at++)
            all |= (int)mem_free(pointers[at]);
        spent_ns += now_ns() - from_ns;
        must((CUresult)all);
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
    begin();
    make_streams();
    make_graph();
    time_launches(200000);
    time_launches_beside_blocking(200000);
    time_allocations(200000);
    time_queries(20000);
    time_frees(10, 1000);
    time_frees(1000, 30);
    time_frees(40000, 2);
    return 0;
}
