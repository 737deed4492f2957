/* A small CUDA runtime of our own over the public driver API, for tests alone: NVIDIA's own refuses a
 * simulated driver, and its licence forbids circumventing that. It holds what PyTorch, JAX and TensorFlow
 * call, and refuses the rest with cudaErrorNotSupported. Runtime errors carry the driver's numbers. */
#ifndef CUDART_H
#define CUDART_H

#include <stdbool.h>

#pragma GCC visibility push(hidden)
#include "cuda_abi.h"
#pragma GCC visibility pop

#define EXPORT __attribute__((visibility("default")))

typedef int cudaError_t;

typedef struct {
    unsigned int x, y, z;
} dim3;

enum cudart_function {
#define CUDA_FUNCTION(symbol, name, version, variant, class) CUDART_##symbol,
#include "../../api/cuda_functions.def"
#undef CUDA_FUNCTION
    CUDART_FUNCTION_COUNT
};

/* The driver's function, found as NVIDIA's runtime finds it: dlopen, then cuGetProcAddress. */
void *cudart_driver(enum cudart_function function);
#define DRIVER(symbol) ((__typeof__(symbol) *)cudart_driver(CUDART_##symbol))

/* Remember an error for cudaGetLastError and return it. */
cudaError_t cudart_result(CUresult result);

/* Make the driver ready and the thread's device current. */
CUresult cudart_enter(void);
#define ENTER()                                                                                              \
    do {                                                                                                     \
        CUresult entered = cudart_enter();                                                                   \
        if (entered != CUDA_SUCCESS) return cudart_result(entered);                                          \
    } while (0)

/* The device that the calling thread uses. */
int cudart_device(void);

/* The kernel that was registered for a host function, loaded. */
CUresult cudart_kernel(const void *host_function, CUkernel *kernel);

static inline CUdeviceptr address(const void *pointer) {
    return (CUdeviceptr)(uintptr_t)pointer;
}

#endif
