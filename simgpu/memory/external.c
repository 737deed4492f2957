/* Memory of other interfaces, such as Vulkan's, taken over as a file descriptor. No such interface counts on
 * a simulated device, so the importer does. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/range.h"

struct CUextMemory_st {
    struct sim_head head;
    unsigned gpu;
    CUcontext context;
    int fd;
    size_t bytes;
};

static struct sim_slab memories = SIM_SLAB(struct CUextMemory_st, 64, 1u << 14);

static bool is_memory(CUexternalMemory memory) {
    return memory != NULL && sim_is_live(&memories, memory);
}

static CUresult import(CUcontext context, int fd, size_t bytes, CUexternalMemory *made) {
    SIM_TRY(sim_device_reserve(context->gpu, bytes));
    CUexternalMemory memory = sim_new(&memories);
    if (memory == NULL) {
        sim_device_refund(context->gpu, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->gpu = context->gpu;
    memory->context = context;
    memory->fd = fd;
    memory->bytes = bytes;
    *made = memory;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuImportExternalMemory(CUexternalMemory *memory,
                                           const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *handle) {
    SIM_ENTER_CONTEXT(context);
    if (memory == NULL || handle == NULL || handle->size == 0) return CUDA_ERROR_INVALID_VALUE;
    if (handle->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) return CUDA_ERROR_NOT_SUPPORTED;
    if (fcntl(handle->handle.fd, F_GETFD) < 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    /* From now on the descriptor is the driver's. */
    return import(context, handle->handle.fd, handle->size, memory);
}

static uintptr_t map(CUexternalMemory memory, size_t offset, size_t bytes) {
    if (!sim_driver.has_backing) return sim_backing_map(bytes, 4096);
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, (off_t)offset);
    return at == MAP_FAILED ? 0 : (uintptr_t)at;
}

SIM_EXPORT CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *address, CUexternalMemory memory,
                                                    const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *buffer) {
    SIM_ENTER_CONTEXT(context);
    if (address == NULL || buffer == NULL || buffer->size == 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    if (!is_memory(memory)) return CUDA_ERROR_INVALID_HANDLE;
    if (buffer->offset > memory->bytes || buffer->size > memory->bytes - buffer->offset)
        return CUDA_ERROR_INVALID_VALUE;
    uintptr_t start = map(memory, buffer->offset, buffer->size);
    struct sim_range *range = start == 0 ? NULL : sim_range_new(SIM_IMPORTED, start, buffer->size);
    if (range == NULL) return CUDA_ERROR_MAP_FAILED;
    range->backed_bytes = buffer->size;
    range->handle = (uintptr_t)memory;
    range->gpu = memory->gpu;
    range->context = context;
    range->device = context->device;
    *address = start;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    SIM_LOCKED();
    if (!is_memory(memory)) return CUDA_ERROR_INVALID_HANDLE;
    close(memory->fd);
    sim_device_refund(memory->gpu, memory->bytes);
    sim_delete(&memories, memory);
    return CUDA_SUCCESS;
}
