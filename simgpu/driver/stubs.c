/* A weak definition of every export that has no other one: it logs once and returns CUDA_ERROR_NOT_SUPPORTED.
 */
#include "driver/driver.h"

static CUresult refuse(const char *symbol, bool *is_said) {
    if (!__atomic_exchange_n(is_said, true, __ATOMIC_RELAXED)) sim_log("%s is not simulated", symbol);
    return CUDA_ERROR_NOT_SUPPORTED;
}

#define CUDA_FUNCTION(symbol, name, abi_version, variant, class)                                             \
    CUresult sim_stub_##symbol(void) __asm__(#symbol) __attribute__((weak, visibility("default")));          \
    CUresult sim_stub_##symbol(void) {                                                                       \
        static bool is_said;                                                                                 \
        return refuse(#symbol, &is_said);                                                                    \
    }
#include "cuda_functions.def"
#undef CUDA_FUNCTION
