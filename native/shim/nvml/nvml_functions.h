/* Every function of NVML by number, and where the real one is. All are found by the first nvmlInit, before
 * which NVML is not initialised and no other function has an answer. */
#ifndef PGPU_SHIM_NVML_FUNCTIONS_H
#define PGPU_SHIM_NVML_FUNCTIONS_H

#include <stdbool.h>

#pragma GCC visibility push(default)
#include "nvml_abi.h"
#pragma GCC visibility pop

#include "limit.h"

/* nvmlErrorString is no NVML_FUNCTION: it returns a string. */
enum pgpu_nvml_function {
#define NVML_FUNCTION(symbol) PGPU_NVML_##symbol,
#include "nvml_functions.def"
#undef NVML_FUNCTION
    PGPU_NVML_COUNT
};

/* Filled by nvmlInit; NULL before. In nvml_stubs.S, in the order above. */
extern void *pgpu_nvml_real[PGPU_NVML_COUNT] __attribute__((visibility("hidden")));

/* The slice that this process lives in; set before any real function can be called. */
extern const struct pgpu_limit *pgpu_nvml_limit;

/* Published in place of a real function before nvmlInit. */
nvmlReturn_t pgpu_nvml_uninitialised(void);

static inline void *pgpu_nvml_real_of(enum pgpu_nvml_function function) {
    void *real = __atomic_load_n(&pgpu_nvml_real[function], __ATOMIC_ACQUIRE);
    return real != 0 ? real : (void *)pgpu_nvml_uninitialised;
}

/* PGPU_NVML_REAL(nvmlShutdown)() calls the real library. */
#define PGPU_NVML_REAL(function) ((__typeof__(function) *)pgpu_nvml_real_of(PGPU_NVML_##function))

#endif
