/* A client of the simulated driver: cases by name, one process for each. A case that returns has passed. */
#ifndef CASES_H
#define CASES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_abi.h"

#define MIB (1ull << 20)
/* What tests/native/test_simgpu.py writes into gpus.conf. */
#define GPU_BYTES     (1024 * MIB)
#define CONTEXT_BYTES (64 * MIB)

struct test_case {
    const char *name;
    void (*run)(void);
};

/* Defined by each client. */
extern const struct test_case cases[];
extern const size_t case_count;

#define CASES(...)                                                                                           \
    const struct test_case cases[] = {__VA_ARGS__};                                                          \
    const size_t case_count = sizeof(cases) / sizeof(cases[0])

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) test_fail(__FILE__, __LINE__, #condition, 0);                                      \
    } while (0)

/* The call must answer exactly this. */
#define EXPECT(wanted, call)                                                                                 \
    do {                                                                                                     \
        CUresult test_result = (call);                                                                       \
        if (test_result != (wanted)) test_fail(__FILE__, __LINE__, #call, (int)test_result);                 \
    } while (0)
#define OK(call) EXPECT(CUDA_SUCCESS, call)

_Noreturn void test_fail(const char *file, int line, const char *what, int result);

/* A current context on a device. */
CUcontext test_begin_on(int device);
CUcontext test_begin(void);
/* Bytes held on the current device by all processes. */
size_t test_used_bytes(void);
/* Device memory, or the case fails. */
CUdeviceptr test_memory(size_t bytes);
uint64_t test_now_ns(void);

/* A PTX module: `spin` takes as many nanoseconds as its argument, `plain` takes none. */
extern const char test_ptx[];
#define TEST_MODULE_BYTES 4096u /* of its variable */
CUfunction test_function(const char *name);
/* Queue work of that length. */
void test_spin(CUstream stream, uint64_t ns);

#endif
