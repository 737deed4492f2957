/* Threads that are cancelled while CUDA refuses them memory: `cancelled allocate`, or `cancelled retain` for
 * the memory of a context. Each must leave the process so that another thread is refused too, and comes back.
 * Prints the number of threads after which one did. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_abi.h"

#define ROUNDS           200
#define DEADLINE_SECONDS 10
#define TOO_MUCH_BYTES   (1ull << 40)

static CUresult (*retain)(CUcontext *, CUdevice);
static CUresult (*set_current)(CUcontext);
static CUresult (*allocate)(CUdeviceptr *, size_t);
static CUcontext context;
static CUresult (*ask)(void);
static unsigned calls;

static CUresult ask_for_memory(void) {
    CUdeviceptr pointer;
    set_current(context);
    return allocate(&pointer, TOO_MUCH_BYTES);
}

static CUresult ask_for_context(void) {
    CUcontext unused;
    return retain(&unused, 0);
}

static void *ask_once(void *unused) {
    if (ask() != CUDA_ERROR_OUT_OF_MEMORY) exit(3);
    return unused;
}

static void *ask_until_cancelled(void *unused) {
    while (ask_once(unused) == unused) {
        __atomic_fetch_add(&calls, 1, __ATOMIC_SEQ_CST);
        pthread_testcancel();
    }
    return unused;
}

static pthread_t start(void *(*work)(void *)) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, NULL) != 0) exit(2);
    return thread;
}

static void cancel_one(unsigned after_calls) {
    __atomic_store_n(&calls, 0, __ATOMIC_SEQ_CST);
    pthread_t thread = start(ask_until_cancelled);
    while (__atomic_load_n(&calls, __ATOMIC_SEQ_CST) <= after_calls)
        sched_yield();
    pthread_cancel(thread);
    pthread_join(thread, NULL);
}

static int another_comes_back(void) {
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += DEADLINE_SECONDS;
    return pthread_timedjoin_np(start(ask_once), NULL, &deadline) == 0;
}

int main(int count, char **words) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL || count < 2) return 2;
    CUresult (*init)(unsigned int) = (CUresult (*)(unsigned int))dlsym(driver, "cuInit");
    retain = (CUresult (*)(CUcontext *, CUdevice))dlsym(driver, "cuDevicePrimaryCtxRetain");
    set_current = (CUresult (*)(CUcontext))dlsym(driver, "cuCtxSetCurrent");
    allocate = (CUresult (*)(CUdeviceptr *, size_t))dlsym(driver, "cuMemAlloc_v2");
    ask = strcmp(words[1], "retain") == 0 ? ask_for_context : ask_for_memory;
    if (init(0) != CUDA_SUCCESS) return 2;
    if (ask == ask_for_memory && retain(&context, 0) != CUDA_SUCCESS) return 2;
    unsigned round = 0;
    for (; round < ROUNDS; round++) {
        cancel_one(round % 4);
        if (!another_comes_back()) break;
    }
    printf("%u\n", round);
    fflush(stdout);
    _Exit(0);
}
