/* What a framework names and the tests never need: it exists, so that the framework loads, and is not
 * supported. */
#include "cudart.h"

EXPORT cudaError_t cudart_not_supported(void);

EXPORT cudaError_t cudart_not_supported(void) {
    return cudart_result(CUDA_ERROR_NOT_SUPPORTED);
}

#define NOT_SUPPORTED(name) EXPORT cudaError_t name(void) __attribute__((alias("cudart_not_supported")))

NOT_SUPPORTED(cudaDeviceGetGraphMemAttribute);
NOT_SUPPORTED(cudaDeviceSetGraphMemAttribute);
NOT_SUPPORTED(cudaGraphAddNode);
NOT_SUPPORTED(cudaGraphConditionalHandleCreate);
NOT_SUPPORTED(cudaGraphNodeGetDependencies);
NOT_SUPPORTED(cudaKernelSetAttributeForDevice);
NOT_SUPPORTED(cudaLibraryGetGlobal);
NOT_SUPPORTED(cudaLibraryGetKernel);
NOT_SUPPORTED(cudaLibraryGetKernelCount);
NOT_SUPPORTED(cudaLibraryGetManaged);
NOT_SUPPORTED(cudaLibraryGetUnifiedFunction);
NOT_SUPPORTED(cudaLibraryLoadData);
NOT_SUPPORTED(cudaLibraryLoadFromFile);
NOT_SUPPORTED(cudaLibraryUnload);
NOT_SUPPORTED(cudaStreamBeginCaptureToGraph);
NOT_SUPPORTED(cudaStreamUpdateCaptureDependencies);

/* A profiler that is not there is none to stop. */
EXPORT cudaError_t cudaProfilerStart(void) {
    return 0;
}

EXPORT cudaError_t cudaProfilerStop(void) {
    return 0;
}
