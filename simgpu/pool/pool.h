/* Stream-ordered memory pools: what is freed stays reserved for the pool up to its threshold. Managed pools
 * hold managed memory of their GPU, whatever place they prefer; pinned pools of the host hold none of a GPU.
 */
#ifndef SIM_POOL_H
#define SIM_POOL_H

#include "context/context.h"
#include "memory/range.h"

struct CUmemPoolHandle_st {
    struct sim_head head;
    unsigned gpu;
    CUdevice device;
    bool is_default;   /* clients cannot destroy it */
    bool is_destroyed; /* goes with its last allocation */
    bool is_imported;  /* counted by its exporter */
    CUmemPoolProps properties;
    uint64_t used_bytes, reserved_bytes, used_high_bytes, reserved_high_bytes;
    uint64_t release_threshold_bytes;
    int reuse_follow_events, reuse_opportunistic, reuse_internal;
    uint32_t readers, writers; /* devices with access, one bit each */
};

extern struct sim_slab sim_pools;

/* Give a pooled allocation back to its pool. Under sim_lock. */
void sim_pool_free(struct sim_range *range);
/* Take memory from a pool. Under sim_lock. */
CUresult sim_pool_allocate(CUmemoryPool pool, CUcontext context, size_t bytes, CUdeviceptr *address);
/* A pool that clients cannot destroy, and memory counted in a pool without an allocation of its own. Under
 * sim_lock. */
CUmemoryPool sim_pool_new(CUdevice device, CUmemAllocationType type, const CUmemLocation *location);
CUresult sim_pool_take(CUmemoryPool pool, uint64_t bytes);
/* Reserve what the next `bytes` taken from a pool lack. Under sim_lock. */
CUresult sim_pool_prepare(CUmemoryPool pool, uint64_t bytes);
/* At a synchronisation: release what the pools of a GPU hold beyond their thresholds. Not under sim_lock. */
void sim_pools_trim(unsigned gpu);
/* Keep at most this much. Under sim_lock. */
void sim_pool_trim_to(CUmemoryPool pool, uint64_t keep_bytes);
/* The pool that cuMemAllocAsync takes from, or NULL; and an end of a pool that may be the current one of its
 * place. Under sim_lock. */
CUmemoryPool sim_pool_of_device(CUdevice device);
void sim_pool_leave_place(const struct CUmemPoolHandle_st *pool);
/* The device of a place: its own, else that of the current context, else the first. */
CUdevice sim_pool_device_of(const CUmemLocation *location);
/* Whether memory of this kind can be pooled at a place. */
CUresult sim_pool_check_place(const CUmemLocation *location, CUmemAllocationType type);

static inline bool sim_pool_is(CUmemoryPool pool) {
    return pool != NULL && sim_is_live(&sim_pools, pool) && !pool->is_destroyed;
}

static inline bool sim_pool_is_managed(const struct CUmemPoolHandle_st *pool) {
    return pool->properties.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
}

static inline bool sim_pool_is_on_host(const struct CUmemPoolHandle_st *pool) {
    return !sim_pool_is_managed(pool) && pool->properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE;
}

#endif
