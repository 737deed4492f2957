/* Children made by the bare system call, which runs no atfork handlers, while other threads allocate. Each
 * child calls into CUDA once, under whatever mutex another thread's copy holds for ever, and must come back.
 * Prints the number of children that did. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda_abi.h"

#define CHILDREN         300
#define THREADS          3
#define DEADLINE_SECONDS 5

static CUresult (*init)(unsigned int);
static CUresult (*retain)(CUcontext *, CUdevice);
static CUresult (*allocate)(CUdeviceptr *, size_t);
static CUresult (*release)(CUdeviceptr);
static bool is_over;

static void *churn(void *unused) {
    CUdeviceptr pointer;
    while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED))
        if (allocate(&pointer, 512) == CUDA_SUCCESS) release(pointer);
    return unused;
}

static void child(void) {
    CUdeviceptr pointer;
    release(4096);
    _exit(allocate(&pointer, 512) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
}

static bool comes_back(pid_t pid) {
    struct timespec pause = {.tv_nsec = 1000000};
    int status;
    for (int waited = 0; waited < DEADLINE_SECONDS * 1000; waited++) {
        if (waitpid(pid, &status, WNOHANG) == pid) return WIFEXITED(status) && WEXITSTATUS(status) == 0;
        nanosleep(&pause, NULL);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return false;
}

static int count_children(void) {
    int back = 0;
    for (int at = 0; at < CHILDREN && back == at; at++) {
        pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (pid == 0) child();
        if (pid > 0 && comes_back(pid)) back++;
    }
    return back;
}

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) return 2;
    init = (CUresult (*)(unsigned int))dlsym(driver, "cuInit");
    retain = (CUresult (*)(CUcontext *, CUdevice))dlsym(driver, "cuDevicePrimaryCtxRetain");
    allocate = (CUresult (*)(CUdeviceptr *, size_t))dlsym(driver, "cuMemAlloc_v2");
    release = (CUresult (*)(CUdeviceptr))dlsym(driver, "cuMemFree_v2");
    CUcontext context;
    if (init(0) != CUDA_SUCCESS || retain(&context, 0) != CUDA_SUCCESS) return 3;
    pthread_t threads[THREADS];
    for (int at = 0; at < THREADS; at++)
        pthread_create(&threads[at], NULL, churn, NULL);
    printf("%d\n", count_children());
    __atomic_store_n(&is_over, true, __ATOMIC_RELAXED);
    for (int at = 0; at < THREADS; at++)
        pthread_join(threads[at], NULL);
    return 0;
}
