#include "program.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const char *const module_text =
    "// pgpu.cost spin argument=0 ns_per_unit=1\n.version 7.0\n.target sm_60\n.address_size 64\n"
    ".visible .entry spin(.param .u64 ns)\n{\n ret;\n}\n";

CUcontext program_context;
CUfunction program_kernel;
static void *driver;

void *program_find(const char *name) {
    void *found = dlsym(driver, name);
    if (found == NULL) exit(2);
    return found;
}

void program_must(CUresult result, const char *name) {
    if (result == CUDA_SUCCESS) return;
    fprintf(stderr, "%s: CUDA error %d\n", name, result);
    exit(1);
}

CUfunction program_load_kernel(void) {
    CUmodule module;
    CUfunction function;
    CALL(cuModuleLoadData, &module, module_text);
    CALL(cuModuleGetFunction, &function, module, "spin");
    return function;
}

void program_begin(void) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) exit(2);
    CALL(cuInit, 0);
    CALL(cuDevicePrimaryCtxRetain, &program_context, 0);
    CALL(cuCtxSetCurrent, program_context);
    program_kernel = program_load_kernel();
}

uint64_t program_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void program_sleep_us(uint64_t us) {
    struct timespec pause = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
    nanosleep(&pause, NULL);
}
