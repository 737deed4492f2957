/* Attributes of pools, and which devices have access to them. */
#include <string.h>

#include "pool/pool.h"

static CUresult put_word(void *to, uint64_t value) {
    memcpy(to, &value, sizeof(value));
    return CUDA_SUCCESS;
}

static CUresult put_flag(void *to, int value) {
    memcpy(to, &value, sizeof(value));
    return CUDA_SUCCESS;
}

static CUresult get(CUmemoryPool pool, CUmemPool_attribute name, void *to) {
    switch ((int)name) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        return put_flag(to, pool->reuse_follow_events);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        return put_flag(to, pool->reuse_opportunistic);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        return put_flag(to, pool->reuse_internal);
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        return put_word(to, pool->release_threshold_bytes);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        return put_word(to, pool->reserved_bytes);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        return put_word(to, pool->reserved_high_bytes);
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        return put_word(to, pool->used_bytes);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        return put_word(to, pool->used_high_bytes);
    case CU_MEMPOOL_ATTR_ALLOCATION_TYPE:
        return put_flag(to, (int)pool->properties.allocType);
    case CU_MEMPOOL_ATTR_LOCATION_TYPE:
        return put_flag(to, (int)pool->properties.location.type);
    case CU_MEMPOOL_ATTR_LOCATION_ID:
        return put_flag(to, pool->properties.location.id);
    case CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES:
        return put_flag(to, pool->is_imported ? CU_MEM_HANDLE_TYPE_NONE : (int)pool->properties.handleTypes);
    case CU_MEMPOOL_ATTR_MAX_POOL_SIZE:
        return put_word(to, pool->properties.maxSize);
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

SIM_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute name, void *to) {
    SIM_ENTER();
    SIM_LOCKED();
    if (!sim_pool_is(pool) || to == NULL) return CUDA_ERROR_INVALID_VALUE;
    return get(pool, name, to);
}

static uint64_t word_at(const void *from) {
    uint64_t value;
    memcpy(&value, from, sizeof(value));
    return value;
}

static int flag_at(const void *from) {
    int value;
    memcpy(&value, from, sizeof(value));
    return value != 0;
}

/* A high mark can only be set back, by writing 0. */
static CUresult reset_high(uint64_t *high_bytes, uint64_t now_bytes, const void *from) {
    if (word_at(from) != 0) return CUDA_ERROR_INVALID_VALUE;
    *high_bytes = now_bytes;
    return CUDA_SUCCESS;
}

static CUresult set(CUmemoryPool pool, CUmemPool_attribute name, const void *from) {
    switch ((int)name) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        pool->reuse_follow_events = flag_at(from);
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        pool->reuse_opportunistic = flag_at(from);
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->reuse_internal = flag_at(from);
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->release_threshold_bytes = word_at(from);
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        return reset_high(&pool->reserved_high_bytes, pool->reserved_bytes, from);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        return reset_high(&pool->used_high_bytes, pool->used_bytes, from);
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

SIM_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute name, void *from) {
    SIM_ENTER();
    SIM_LOCKED();
    if (!sim_pool_is(pool) || from == NULL) return CUDA_ERROR_INVALID_VALUE;
    return set(pool, name, from);
}

SIM_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes) {
    SIM_ENTER();
    SIM_LOCKED();
    if (!sim_pool_is(pool)) return CUDA_ERROR_INVALID_VALUE;
    sim_pool_trim_to(pool, keep_bytes);
    return CUDA_SUCCESS;
}

static CUresult set_access(CUmemoryPool pool, const CUmemAccessDesc *wanted) {
    if (wanted->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(wanted->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    uint32_t device = 1u << wanted->location.id;
    if (wanted->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE && wanted->location.id == pool->device)
        return CUDA_ERROR_INVALID_VALUE; /* a pool's own device keeps its access */
    if (wanted->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
        pool->writers &= ~device;
    else
        pool->writers |= device;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *wanted, size_t count) {
    SIM_ENTER();
    SIM_LOCKED();
    if (!sim_pool_is(pool) || wanted == NULL || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        SIM_TRY(set_access(pool, &wanted[i]));
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location) {
    SIM_ENTER();
    SIM_LOCKED();
    if (flags == NULL || !sim_pool_is(pool) || location == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || !sim_is_device(location->id))
        return CUDA_ERROR_INVALID_VALUE;
    bool has_access = location->id == pool->device || (pool->writers & (1u << location->id)) != 0;
    *flags = has_access ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}
