/* What every program here begins with: a driver, found as any program finds it, a context and a kernel whose
 * time is its argument. Any failure ends the program. */
#ifndef PGPU_TESTS_PROGRAM_H
#define PGPU_TESTS_PROGRAM_H

#include <stdint.h>

#include "cuda_abi.h"

/* Call a function of the driver that must succeed, or call one and return its result. */
#define CALL(function, ...)                                                                                  \
    program_must(((__typeof__(function) *)program_find(#function))(__VA_ARGS__), #function)
#define ASK(function, ...) ((__typeof__(function) *)program_find(#function))(__VA_ARGS__)

extern CUcontext program_context;
extern CUfunction program_kernel;

void *program_find(const char *name);
void program_must(CUresult result, const char *name);

/* Enter the first device's primary context and load the kernel. */
void program_begin(void);

/* The kernel anew, of the current context. */
CUfunction program_load_kernel(void);

uint64_t program_now_ns(void);
void program_sleep_us(uint64_t us);

#endif
