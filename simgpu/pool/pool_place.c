/* The pools of a place (a device, the host, or none for managed memory that prefers none): a default one for
 * pinned memory and one for managed memory, and the current ones, which clients choose. */
#include "managed/residency.h"
#include "pool/pool.h"

/* Behind the devices. */
enum { HOST_PLACE = SIM_MAX_GPUS, NO_PLACE, PLACES };

static struct place {
    CUmemoryPool first, current;
} places[2][PLACES];

static bool is_managed(CUmemAllocationType type) {
    return type == CU_MEM_ALLOCATION_TYPE_MANAGED;
}

static struct place *place_of(const CUmemLocation *location, CUmemAllocationType type) {
    unsigned at = HOST_PLACE;
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) at = (unsigned)location->id;
    if (location->type == CU_MEM_LOCATION_TYPE_NONE) at = NO_PLACE;
    return &places[is_managed(type)][at];
}

CUdevice sim_pool_device_of(const CUmemLocation *location) {
    CUcontext context;
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) return location->id;
    return sim_current_context(&context) == CUDA_SUCCESS ? context->device : 0;
}

static CUresult check_paging(void) {
    for (CUdevice device = 0; device < sim_driver.device_count; device++)
        if (!sim_residency_pages(sim_gpu_of(device))) return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

/* The simulated host is one NUMA node. */
CUresult sim_pool_check_place(const CUmemLocation *location, CUmemAllocationType type) {
    if (!is_managed(type) && type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (is_managed(type)) SIM_TRY(check_paging());
    switch ((int)location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return sim_is_device(location->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return location->id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_HOST:
        return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_NONE:
        return is_managed(type) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUmemoryPool default_of(const CUmemLocation *location, CUmemAllocationType type) {
    struct place *place = place_of(location, type);
    if (place->first == NULL) place->first = sim_pool_new(sim_pool_device_of(location), type, location);
    return place->first;
}

static CUmemoryPool current_of(const CUmemLocation *location, CUmemAllocationType type) {
    CUmemoryPool current = place_of(location, type)->current;
    return current != NULL ? current : default_of(location, type);
}

static CUmemLocation location_of(CUdevice device) {
    return (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

CUmemoryPool sim_pool_of_device(CUdevice device) {
    CUmemLocation location = location_of(device);
    return current_of(&location, CU_MEM_ALLOCATION_TYPE_PINNED);
}

void sim_pool_leave_place(const struct CUmemPoolHandle_st *pool) {
    struct place *place = place_of(&pool->properties.location, pool->properties.allocType);
    if (place->current == pool) place->current = NULL;
}

SIM_EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                           CUmemAllocationType type) {
    SIM_ENTER();
    if (pool == NULL || location == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_pool_check_place(location, type));
    SIM_LOCKED();
    *pool = default_of(location, type);
    return *pool == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    SIM_ENTER();
    if (pool == NULL || location == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_pool_check_place(location, type));
    SIM_LOCKED();
    *pool = current_of(location, type);
    return *pool == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
    SIM_ENTER();
    if (location == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_pool_check_place(location, type));
    SIM_LOCKED();
    bool fits = sim_pool_is(pool) && pool->properties.allocType == type &&
                place_of(&pool->properties.location, type) == place_of(location, type);
    if (!fits) return CUDA_ERROR_INVALID_VALUE;
    place_of(location, type)->current = pool;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    CUmemLocation location = location_of(device);
    return cuMemGetDefaultMemPool(pool, &location, CU_MEM_ALLOCATION_TYPE_PINNED);
}

SIM_EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    CUmemLocation location = location_of(device);
    return cuMemGetMemPool(pool, &location, CU_MEM_ALLOCATION_TYPE_PINNED);
}

SIM_EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    CUmemLocation location = location_of(device);
    return cuMemSetMemPool(&location, CU_MEM_ALLOCATION_TYPE_PINNED, pool);
}
