#include "cases.h"

#include <time.h>

const char test_ptx[] =
    "// pgpu.cost spin fixed_ns=0 argument=0 ns_per_unit=1\n"
    "// pgpu.cost plain fixed_ns=0\n"
    ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".global .align 4 .b8 table[4096];\n"
    ".visible .entry spin(.param .u64 spin_ns) { ret; }\n"
    "/* .entry hidden() */\n"
    ".visible .entry plain() { ret; }\n"
    ".visible .entry shapes(.param .u8 a, .param .u64 b, .param .align 16 .b8 c[20]) { ret; }\n";

_Noreturn void test_fail(const char *file, int line, const char *what, int result) {
    const char *name = NULL;
    cuGetErrorName((CUresult)result, &name);
    fprintf(stderr, "%s:%d: %s (%s)\n", file, line, what, name == NULL ? "?" : name);
    exit(1);
}

CUcontext test_begin_on(int device) {
    CUcontext context;
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, device));
    return context;
}

CUcontext test_begin(void) {
    return test_begin_on(0);
}

size_t test_used_bytes(void) {
    size_t free_bytes, total_bytes;
    OK(cuMemGetInfo_v2(&free_bytes, &total_bytes));
    return total_bytes - free_bytes;
}

CUdeviceptr test_memory(size_t bytes) {
    CUdeviceptr address = 0;
    OK(cuMemAlloc_v2(&address, bytes));
    return address;
}

uint64_t test_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

CUfunction test_function(const char *name) {
    CUmodule module;
    CUfunction function;
    OK(cuModuleLoadData(&module, test_ptx));
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

void test_spin(CUstream stream, uint64_t ns) {
    static CUfunction spin;
    if (spin == NULL) spin = test_function("spin");
    void *arguments[] = {&ns};
    OK(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, arguments, NULL));
}

int main(int argument_count, char **arguments) {
    for (size_t i = 0; i < case_count; i++) {
        if (argument_count != 2 || strcmp(arguments[1], cases[i].name) != 0) continue;
        cases[i].run();
        return 0;
    }
    fprintf(stderr, "usage: %s CASE\n", arguments[0]);
    return 2;
}
