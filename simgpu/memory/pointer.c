/* What a pointer is: memory of which device, which context, which allocation. */
#include <string.h>

#include "pool/pool.h"
#include "memory/range.h"

static bool is_host(const struct sim_range *range) {
    bool is_pooled = range->kind == SIM_POOLED && sim_pool_is_on_host(range->pool);
    return range->kind == SIM_PINNED || range->kind == SIM_REGISTERED || is_pooled;
}

/* Write the low `bytes` of a value. */
static CUresult put(void *to, uint64_t value, size_t bytes) {
    memcpy(to, &value, bytes);
    return CUDA_SUCCESS;
}

static unsigned handle_types(const struct sim_range *range) {
    if (range->kind == SIM_POOLED) return range->pool->properties.handleTypes;
    return range->kind == SIM_MAPPING ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
}

static bool is_for_ipc(const struct sim_range *range) {
    return range->kind == SIM_DEVICE;
}

static CUresult answer_identity(void *to, CUpointer_attribute name, const struct sim_range *range) {
    switch ((int)name) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        return put(to, (uintptr_t)range->context, sizeof(CUcontext));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        return put(to, is_host(range) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE, sizeof(CUmemorytype));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        return put(to, (uint64_t)range->device, sizeof(int));
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        return put(to, range->buffer_id, sizeof(uint64_t));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        return put(to, range->start, sizeof(CUdeviceptr));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        return put(to, range->bytes, sizeof(size_t));
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult answer(void *to, CUpointer_attribute name, const struct sim_range *range, uintptr_t address) {
    switch ((int)name) {
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        return put(to, address, sizeof(CUdeviceptr));
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!is_host(range) && !sim_is_managed(range)) return CUDA_ERROR_INVALID_VALUE;
        return put(to, address, sizeof(void *));
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        return put(to, range->syncs_copies, sizeof(int));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        return put(to, sim_is_managed(range), sizeof(int));
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        return put(to, is_for_ipc(range), sizeof(int));
    case CU_POINTER_ATTRIBUTE_MAPPED:
        return put(to, 1, sizeof(int));
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        return put(to, handle_types(range), sizeof(unsigned));
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        return put(to, 0, sizeof(int));
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return put(to, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE, sizeof(unsigned));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        return put(to, (uintptr_t)range->pool, sizeof(CUmemoryPool));
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        return put(to, name == CU_POINTER_ATTRIBUTE_MAPPING_SIZE ? range->bytes : range->start,
                   sizeof(size_t));
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        return put(to, range->buffer_id, sizeof(uint64_t));
    default:
        return answer_identity(to, name, range);
    }
}

SIM_EXPORT CUresult cuPointerGetAttribute(void *to, CUpointer_attribute name, CUdeviceptr address) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    if (to == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    const struct sim_range *range = sim_memory_at(address);
    return range == NULL ? CUDA_ERROR_INVALID_VALUE : answer(to, name, range, address);
}

/* The driver's values for an unknown pointer, where several attributes are queried at once. */
static void answer_unknown(void *to, CUpointer_attribute name) {
    switch ((int)name) {
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        put(to, (uint64_t)CU_DEVICE_INVALID, sizeof(int));
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        put(to, 0, sizeof(int));
        break;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        break;
    default:
        put(to, 0, sizeof(uint64_t));
    }
}

SIM_EXPORT CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *names, void **to,
                                           CUdeviceptr address) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    if (names == NULL || to == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    const struct sim_range *range = sim_memory_at(address);
    for (unsigned i = 0; i < count; i++)
        if (range == NULL || answer(to[i], names[i], range, address) != CUDA_SUCCESS)
            answer_unknown(to[i], names[i]);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute name, CUdeviceptr address) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    if (value == NULL || name != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    struct sim_range *range = sim_memory_at(address);
    if (range == NULL) return CUDA_ERROR_INVALID_VALUE;
    int is_on;
    memcpy(&is_on, value, sizeof(is_on));
    range->syncs_copies = is_on != 0;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t bytes,
                                                  CUmemRangeHandleType type, unsigned long long flags) {
    (void)handle, (void)address, (void)bytes, (void)type, (void)flags;
    return CUDA_ERROR_NOT_SUPPORTED; /* DMA-BUF */
}
