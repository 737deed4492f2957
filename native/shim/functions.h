/* Every function of the driver by number: its names, and the address of the real one. */
#ifndef PGPU_SHIM_FUNCTIONS_H
#define PGPU_SHIM_FUNCTIONS_H

#include <stdbool.h>

#include "cuda_abi.h"

enum pgpu_function {
#define CUDA_FUNCTION(symbol, name, version, variant, class) PGPU_FUNCTION_##symbol,
#include "cuda_functions.def"
#undef CUDA_FUNCTION
    PGPU_FUNCTION_COUNT
};

/* The ELF symbol, such as `cuMemAlloc_v2`. */
const char *pgpu_function_symbol(enum pgpu_function function);
/* The name that cuGetProcAddress takes, such as `cuMemAlloc`. */
const char *pgpu_function_name(enum pgpu_function function);
/* The CUDA version that introduced this ABI: 1000 · major + 10 · minor. */
int pgpu_function_version(enum pgpu_function function);
/* Whether the stream handle 0 means the calling thread's own default stream (`_ptds`, `_ptsz`). */
bool pgpu_function_is_per_thread(enum pgpu_function function);

/* Filled by pgpu_resolve; NULL before. In stubs.S, in the order above. */
extern void *pgpu_real[PGPU_FUNCTION_COUNT] __attribute__((visibility("hidden")));

/* Load the real driver if it is not loaded, and return a function that can be called: the real one, or one
 * that returns the error with which CUDA is refused here. */
void *pgpu_resolve(enum pgpu_function function);

static inline void *pgpu_real_of(enum pgpu_function function) {
    void *real = __atomic_load_n(&pgpu_real[function], __ATOMIC_ACQUIRE);
    return __builtin_expect(real != NULL, 1) ? real : pgpu_resolve(function);
}

/* PGPU_REAL(cuMemFree_v2)(pointer) calls the real driver. */
#define PGPU_REAL(function) ((__typeof__(function) *)pgpu_real_of(PGPU_FUNCTION_##function))

/* Whether the loaded driver is new enough to have the function. */
bool pgpu_driver_has(enum pgpu_function function);

#define PGPU_EXPORT __attribute__((visibility("default")))

#endif
