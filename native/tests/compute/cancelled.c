/* A thread launches in a job that is held, and is cancelled there; then the process goes on. It prints a line
 * when each step may follow, and waits for one. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda_abi.h"

static const char *const module_text = ".version 7.0\n.target sm_60\n.address_size 64\n"
                                       ".visible .entry nothing()\n{\n ret;\n}\n";
static void *driver;
static CUcontext context;
static CUfunction kernel;

#define CALL(function, ...) ((__typeof__(function) *)dlsym(driver, #function))(__VA_ARGS__)

static void must(CUresult result) {
    if (result != CUDA_SUCCESS) exit(1);
}

static CUresult launch(void) {
    return CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

static void *launch_in_thread(void *unused) {
    must(CALL(cuCtxSetCurrent, context));
    launch();
    return unused;
}

static void say(const char *line) {
    puts(line);
    fflush(stdout);
    while (getchar() != '\n') {
    }
}

int main(void) {
    CUmodule module;
    pthread_t thread;
    void *outcome;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) return 2;
    must(CALL(cuInit, 0));
    must(CALL(cuDevicePrimaryCtxRetain, &context, 0));
    must(CALL(cuCtxSetCurrent, context));
    must(CALL(cuModuleLoadData, &module, module_text));
    must(CALL(cuModuleGetFunction, &kernel, module, "nothing"));
    pthread_create(&thread, NULL, launch_in_thread, NULL);
    say("launching");
    pthread_cancel(thread);
    pthread_join(thread, &outcome);
    say(outcome == PTHREAD_CANCELED ? "cancelled" : "launched");
    printf("%d %d\n", launch(), CALL(cuCtxSynchronize));
    return 0;
}
