/* The driver's log and the profiler: there is nothing to log, and nothing to profile. */
#include "driver/driver.h"

struct CUlogsCallbackEntry_st {
    struct sim_head head;
    CUlogsCallback function;
    void *data;
};

static struct sim_slab callbacks = SIM_SLAB(struct CUlogsCallbackEntry_st, 32, 4096);

SIM_EXPORT CUresult cuLogsRegisterCallback(CUlogsCallback function, void *data,
                                           CUlogsCallbackHandle *handle) {
    if (function == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUlogsCallbackHandle entry = sim_new(&callbacks);
    if (entry == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    entry->function = function;
    entry->data = data;
    if (handle != NULL) *handle = entry;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle handle) {
    if (handle == NULL || !sim_is_live(&callbacks, handle)) return CUDA_ERROR_INVALID_VALUE;
    sim_delete(&callbacks, handle);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuLogsCurrent(CUlogIterator *iterator, unsigned int flags) {
    if (iterator == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    *iterator = 0;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuLogsDumpToMemory(CUlogIterator *iterator, char *buffer, size_t *bytes,
                                       unsigned int flags) {
    (void)iterator;
    if (buffer == NULL || bytes == NULL || flags != 0 || *bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    *buffer = '\0';
    *bytes = 0;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuProfilerStart(void) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuProfilerStop(void) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    return CUDA_SUCCESS;
}
