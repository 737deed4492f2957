/* Reaching the driver, errors, and which device a thread uses. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "cudart.h"

static const struct {
    const char *name;
    int version;
    bool is_per_thread;
} functions[] = {
#define PLAIN                                                false
#define PTDS                                                 true
#define PTSZ                                                 true
#define CUDA_FUNCTION(symbol, name, version, variant, class) {name, version, variant},
#include "../../api/cuda_functions.def"
#undef CUDA_FUNCTION
};

static void *found[CUDART_FUNCTION_COUNT];
static __thread cudaError_t last_error;
static __thread int thread_device;

static CUresult lack(void) {
    return CUDA_ERROR_NOT_SUPPORTED;
}

static void *library(void) {
    static void *handle;
    void *known = __atomic_load_n(&handle, __ATOMIC_ACQUIRE);
    if (known != NULL) return known;
    known = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    __atomic_store_n(&handle, known, __ATOMIC_RELEASE);
    return known;
}

static void *look_up(enum cudart_function function) {
    if (library() == NULL) return NULL;
    __typeof__(cuGetProcAddress_v2) *get =
        (__typeof__(cuGetProcAddress_v2) *)dlsym(library(), "cuGetProcAddress_v2");
    cuuint64_t flags = functions[function].is_per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                                         : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    void *real = NULL;
    CUdriverProcAddressQueryResult status;
    if (get == NULL ||
        get(functions[function].name, &real, functions[function].version, flags, &status) != CUDA_SUCCESS)
        return NULL;
    return real;
}

void *cudart_driver(enum cudart_function function) {
    void *real = __atomic_load_n(&found[function], __ATOMIC_ACQUIRE);
    if (real != NULL) return real;
    real = look_up(function);
    if (real == NULL) real = (void *)lack;
    __atomic_store_n(&found[function], real, __ATOMIC_RELEASE);
    return real;
}

cudaError_t cudart_result(CUresult result) {
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) last_error = (cudaError_t)result;
    return (cudaError_t)result;
}

static CUresult enter_device(int device) {
    CUcontext context;
    CUresult result = DRIVER(cuDevicePrimaryCtxRetain)(&context, device);
    return result == CUDA_SUCCESS ? DRIVER(cuCtxSetCurrent)(context) : result;
}

CUresult cudart_enter(void) {
    CUcontext current = NULL;
    CUresult result = DRIVER(cuCtxGetCurrent)(&current);
    if (result == CUDA_ERROR_NOT_INITIALIZED) result = DRIVER(cuInit)(0);
    if (result != CUDA_SUCCESS) return library() == NULL ? CUDA_ERROR_NO_DEVICE : result;
    return current == NULL ? enter_device(thread_device) : CUDA_SUCCESS;
}

int cudart_device(void) {
    CUdevice device;
    CUcontext current = NULL;
    if (DRIVER(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || current == NULL) return thread_device;
    return DRIVER(cuCtxGetDevice)(&device) == CUDA_SUCCESS ? device : thread_device;
}

EXPORT cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = 0;
    return error;
}

EXPORT cudaError_t cudaPeekAtLastError(void) {
    return last_error;
}

EXPORT const char *cudaGetErrorString(cudaError_t error) {
    const char *text = NULL;
    if (error == CUDA_SUCCESS) return "no error";
    return DRIVER(cuGetErrorString)((CUresult)error, &text) == CUDA_SUCCESS && text != NULL
               ? text
               : "unrecognized error code";
}

EXPORT const char *cudaGetErrorName(cudaError_t error) {
    switch (error) {
    case CUDA_SUCCESS:
        return "cudaSuccess";
    case CUDA_ERROR_INVALID_VALUE:
        return "cudaErrorInvalidValue";
    case CUDA_ERROR_OUT_OF_MEMORY:
        return "cudaErrorMemoryAllocation";
    case CUDA_ERROR_NOT_INITIALIZED:
        return "cudaErrorInitializationError";
    case CUDA_ERROR_NO_DEVICE:
        return "cudaErrorNoDevice";
    case CUDA_ERROR_INVALID_DEVICE:
        return "cudaErrorInvalidDevice";
    case CUDA_ERROR_NOT_READY:
        return "cudaErrorNotReady";
    case CUDA_ERROR_NOT_PERMITTED:
        return "cudaErrorNotPermitted";
    case CUDA_ERROR_NOT_SUPPORTED:
        return "cudaErrorNotSupported";
    default:
        return "cudaErrorUnknown";
    }
}

static CUresult ready(void) {
    int count;
    CUresult result = DRIVER(cuDeviceGetCount)(&count);
    if (result == CUDA_ERROR_NOT_INITIALIZED) result = DRIVER(cuInit)(0);
    return library() == NULL ? CUDA_ERROR_NO_DEVICE : result;
}

EXPORT cudaError_t cudaGetDeviceCount(int *count) {
    CUresult result = ready();
    if (result == CUDA_SUCCESS) result = DRIVER(cuDeviceGetCount)(count);
    if (result == CUDA_SUCCESS && *count == 0) result = CUDA_ERROR_NO_DEVICE;
    return cudart_result(result);
}

EXPORT cudaError_t cudaGetDevice(int *device) {
    CUresult result = ready();
    *device = cudart_device();
    return cudart_result(result);
}

/* Since CUDA 12 this makes the device's context. */
EXPORT cudaError_t cudaSetDevice(int device) {
    int count = 0;
    CUresult result = ready();
    if (result == CUDA_SUCCESS) result = DRIVER(cuDeviceGetCount)(&count);
    if (result == CUDA_SUCCESS && (device < 0 || device >= count)) result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS) result = enter_device(device);
    if (result == CUDA_SUCCESS) thread_device = device;
    return cudart_result(result);
}

EXPORT cudaError_t cudaDriverGetVersion(int *version) {
    return cudart_result(DRIVER(cuDriverGetVersion)(version));
}

EXPORT cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return 0;
}

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned int version,
                                                    unsigned long long flags,
                                                    CUdriverProcAddressQueryResult *status) {
    CUdriverProcAddressQueryResult unused;
    *function = NULL;
    CUresult result = ready();
    if (result != CUDA_SUCCESS) return cudart_result(result);
    return cudart_result(DRIVER(cuGetProcAddress_v2)(symbol, function, (int)version, flags,
                                                     status == NULL ? &unused : status));
}

EXPORT cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                                           CUdriverProcAddressQueryResult *status) {
    return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, status);
}
