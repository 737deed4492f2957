/* Kernels: what a program registers before main, and its launches. Nothing is loaded before it is used. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cudart.h"

struct binary {
    const void *image; /* the fat binary's wrapper */
    CUlibrary library; /* NULL until a kernel of it is used */
};

struct entry {
    const void *host; /* NULL: free */
    const char *name;
    struct binary *binary;
    CUkernel kernel;
    bool is_variable;
    size_t bytes;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct entry *entries; /* open addressing */
static size_t capacity, used;

static size_t slot_of(const struct entry *table, size_t size, const void *host) {
    size_t slot = ((uintptr_t)host * 0x9e3779b97f4a7c15ull >> 20) % size;
    while (table[slot].host != NULL && table[slot].host != host)
        slot = (slot + 1) % size;
    return slot;
}

static bool grow(void) {
    size_t size = capacity == 0 ? 1024 : capacity * 2;
    struct entry *table = calloc(size, sizeof(*table));
    if (table == NULL) return false;
    for (size_t i = 0; i < capacity; i++)
        if (entries[i].host != NULL) table[slot_of(table, size, entries[i].host)] = entries[i];
    free(entries);
    entries = table;
    capacity = size;
    return true;
}

static void add(struct entry entry) {
    pthread_mutex_lock(&mutex);
    if (used * 2 < capacity || grow()) {
        entries[slot_of(entries, capacity, entry.host)] = entry;
        used++;
    }
    pthread_mutex_unlock(&mutex);
}

static struct entry *find(const void *host) {
    if (capacity == 0) return NULL;
    struct entry *entry = &entries[slot_of(entries, capacity, host)];
    return entry->host == NULL ? NULL : entry;
}

static CUresult load(struct entry *entry) {
    struct binary *binary = entry->binary;
    if (binary->library != NULL) return CUDA_SUCCESS;
    return DRIVER(cuLibraryLoadData)(&binary->library, binary->image, NULL, NULL, 0, NULL, NULL, 0);
}

static CUresult kernel_of(const void *host, CUkernel *kernel) {
    struct entry *entry = find(host);
    if (entry == NULL || entry->is_variable) return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = entry->kernel != NULL ? CUDA_SUCCESS : load(entry);
    if (result == CUDA_SUCCESS && entry->kernel == NULL)
        result = DRIVER(cuLibraryGetKernel)(&entry->kernel, entry->binary->library, entry->name);
    *kernel = entry->kernel;
    return result;
}

CUresult cudart_kernel(const void *host, CUkernel *kernel) {
    pthread_mutex_lock(&mutex);
    CUresult result = kernel_of(host, kernel);
    pthread_mutex_unlock(&mutex);
    return result;
}

EXPORT void **__cudaRegisterFatBinary(void *image) {
    struct binary *binary = calloc(1, sizeof(*binary));
    if (binary != NULL) binary->image = image;
    return (void **)binary;
}

EXPORT void __cudaRegisterFatBinaryEnd(void **binary) {
    (void)binary;
}

/* Comes from atexit, when the driver may be gone; the process's end frees all. */
EXPORT void __cudaUnregisterFatBinary(void **binary) {
    (void)binary;
}

EXPORT void __cudaRegisterFunction(void **binary, const char *host, char *device, const char *name, int limit,
                                   void *thread, void *block, void *block_dim, void *grid_dim, int *warp) {
    (void)device, (void)limit, (void)thread, (void)block, (void)block_dim, (void)grid_dim, (void)warp;
    add((struct entry){.host = host, .name = name, .binary = (struct binary *)binary});
}

EXPORT void __cudaRegisterVar(void **binary, char *host, char *device, const char *name, int is_external,
                              size_t bytes, int is_constant, int is_global) {
    (void)device, (void)is_external, (void)is_constant, (void)is_global;
    add((struct entry){
        .host = host, .name = name, .binary = (struct binary *)binary, .is_variable = true, .bytes = bytes});
}

static CUresult variable(const void *host, CUdeviceptr *pointer) {
    size_t bytes;
    pthread_mutex_lock(&mutex);
    struct entry *entry = find(host);
    CUresult result = entry == NULL || !entry->is_variable ? CUDA_ERROR_INVALID_VALUE : load(entry);
    if (result == CUDA_SUCCESS)
        result = DRIVER(cuLibraryGetGlobal)(pointer, &bytes, entry->binary->library, entry->name);
    pthread_mutex_unlock(&mutex);
    return result;
}

EXPORT cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol) {
    ENTER();
    return cudart_result(variable(symbol, (CUdeviceptr *)pointer));
}

EXPORT cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *source, size_t bytes, size_t offset,
                                      int kind) {
    (void)kind;
    ENTER();
    CUdeviceptr pointer;
    CUresult result = variable(symbol, &pointer);
    return cudart_result(result == CUDA_SUCCESS ? DRIVER(cuMemcpyHtoD_v2)(pointer + offset, source, bytes)
                                                : result);
}

/* What stands between the `<<<` and the `>>>` of a launch. */
static __thread struct {
    dim3 grid, block;
    size_t shared_bytes;
    CUstream stream;
} configuration;

EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, CUstream stream) {
    configuration.grid = grid;
    configuration.block = block;
    configuration.shared_bytes = shared_bytes;
    configuration.stream = stream;
    return 0;
}

EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream) {
    *grid = configuration.grid;
    *block = configuration.block;
    *shared_bytes = configuration.shared_bytes;
    *(CUstream *)stream = configuration.stream;
    return 0;
}

static CUresult launch(CUkernel kernel, dim3 grid, dim3 block, void **arguments, size_t shared_bytes,
                       CUstream stream) {
    return DRIVER(cuLaunchKernel)((CUfunction)kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                  (unsigned)shared_bytes, stream, arguments, NULL);
}

EXPORT cudaError_t __cudaGetKernel(CUkernel *kernel, const void *host) {
    ENTER();
    return cudart_result(cudart_kernel(host, kernel));
}

EXPORT cudaError_t __cudaLaunchKernel(CUkernel kernel, dim3 grid, dim3 block, void **arguments,
                                      size_t shared_bytes, CUstream stream) {
    ENTER();
    return cudart_result(launch(kernel, grid, block, arguments, shared_bytes, stream));
}

EXPORT cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments,
                                    size_t shared_bytes, CUstream stream) {
    ENTER();
    CUkernel kernel;
    CUresult result = cudart_kernel(host, &kernel);
    return cudart_result(result == CUDA_SUCCESS ? launch(kernel, grid, block, arguments, shared_bytes, stream)
                                                : result);
}

EXPORT cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **arguments,
                                               size_t shared_bytes, CUstream stream) {
    return cudaLaunchKernel(host, grid, block, arguments, shared_bytes, stream);
}

struct launch_configuration {
    dim3 grid, block;
    size_t shared_bytes;
    CUstream stream;
    void *attributes;
    unsigned attribute_count;
};

EXPORT cudaError_t cudaLaunchKernelExC(const struct launch_configuration *wanted, const void *host,
                                       void **arguments) {
    return cudaLaunchKernel(host, wanted->grid, wanted->block, arguments, wanted->shared_bytes,
                            wanted->stream);
}

EXPORT cudaError_t cudaFuncSetAttribute(const void *host, CUfunction_attribute attribute, int value) {
    ENTER();
    CUkernel kernel;
    CUresult result = cudart_kernel(host, &kernel);
    return cudart_result(result == CUDA_SUCCESS
                             ? DRIVER(cuKernelSetAttribute)(attribute, value, kernel, cudart_device())
                             : result);
}

struct function_attributes {
    size_t shared_bytes, constant_bytes, local_bytes;
    int threads_per_block, registers, ptx_version, binary_version, cache_mode, dynamic_shared_bytes,
        rest[5 + 17];
};

static int attribute(CUkernel kernel, CUfunction_attribute which) {
    int value = 0;
    DRIVER(cuKernelGetAttribute)(&value, which, kernel, cudart_device());
    return value;
}

EXPORT cudaError_t cudaFuncGetAttributes(struct function_attributes *attributes, const void *host) {
    ENTER();
    CUkernel kernel;
    CUresult result = cudart_kernel(host, &kernel);
    if (result != CUDA_SUCCESS) return cudart_result(result);
    memset(attributes, 0, offsetof(struct function_attributes, rest));
    attributes->shared_bytes = (size_t)attribute(kernel, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
    attributes->constant_bytes = (size_t)attribute(kernel, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES);
    attributes->local_bytes = (size_t)attribute(kernel, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
    attributes->threads_per_block = attribute(kernel, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    attributes->registers = attribute(kernel, CU_FUNC_ATTRIBUTE_NUM_REGS);
    attributes->ptx_version = attribute(kernel, CU_FUNC_ATTRIBUTE_PTX_VERSION);
    attributes->binary_version = attribute(kernel, CU_FUNC_ATTRIBUTE_BINARY_VERSION);
    return 0;
}

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *host,
                                                                          int block_size, size_t shared_bytes,
                                                                          unsigned int flags) {
    ENTER();
    CUkernel kernel;
    CUresult result = cudart_kernel(host, &kernel);
    if (result == CUDA_SUCCESS)
        result = DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(
            blocks, (CUfunction)kernel, block_size, shared_bytes, flags);
    return cudart_result(result);
}

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host,
                                                                 int block_size, size_t shared_bytes) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, host, block_size, shared_bytes, 0);
}
