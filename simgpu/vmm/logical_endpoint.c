/* Logical endpoints: spans of addresses on a fabric, to which physical memory is bound. The fabric is one
 * machine here, so nothing is exported, and what is bound is held and not shown at any address. */
#include <stdlib.h>

#include "vmm/vmm.h"

#define MOST_ENDPOINTS 256u

struct binding {
    struct binding *next;
    struct sim_physical *memory;
    CUdevice device;
    uint64_t at, bytes;
};

/* By id. */
static struct endpoint {
    bool is_reserved, is_made, is_queried;
    CUlogicalEndpointProp properties;
    uint32_t team; /* bit d: device d takes part */
    struct binding *bindings;
} endpoints[MOST_ENDPOINTS];

static bool is_span(uint32_t first, uint32_t count) {
    return count > 0 && first < MOST_ENDPOINTS && count <= MOST_ENDPOINTS - first;
}

static struct endpoint *made(CUlogicalEndpointId id) {
    return id < MOST_ENDPOINTS && endpoints[id].is_made ? &endpoints[id] : NULL;
}

static bool is_free(uint32_t first, uint32_t count) {
    for (uint32_t id = first; id < first + count; id++)
        if (endpoints[id].is_reserved) return false;
    return true;
}

SIM_EXPORT CUresult cuLogicalEndpointIdReserve(CUlogicalEndpointId *first, cuuint32_t count) {
    SIM_ENTER();
    if (first == NULL || count == 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    uint32_t id = 1; /* 0 is nobody's */
    while (is_span(id, count) && !is_free(id, count))
        id++;
    if (!is_span(id, count)) return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < count; i++)
        endpoints[id + i] = (struct endpoint){.is_reserved = true};
    *first = id;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuLogicalEndpointIdRelease(CUlogicalEndpointId first, cuuint32_t count) {
    SIM_ENTER();
    SIM_LOCKED();
    if (!is_span(first, count)) return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t id = first; id < first + count; id++)
        if (!endpoints[id].is_reserved || endpoints[id].is_made) return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t id = first; id < first + count; id++)
        endpoints[id].is_reserved = false;
    return CUDA_SUCCESS;
}

static CUresult check_device(CUdevice device) {
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    return sim_gpu_of(device)->compute_major >= 9 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult check(const CUlogicalEndpointProp *properties) {
    if (properties == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (properties->ipcHandleTypes != 0 || properties->flags != 0) return CUDA_ERROR_NOT_SUPPORTED;
    if (properties->type == CU_LOGICAL_ENDPOINT_TYPE_UNICAST) return check_device(properties->unicast.device);
    unsigned count = properties->multicast.numDevices;
    bool is_team = count > 0 && count <= (unsigned)sim_driver.device_count;
    if (properties->type != CU_LOGICAL_ENDPOINT_TYPE_MULTICAST || !is_team) return CUDA_ERROR_INVALID_VALUE;
    return check_device(0);
}

SIM_EXPORT CUresult cuLogicalEndpointGetLimits(cuuint64_t *alignment, cuuint64_t *most_bytes,
                                               const CUlogicalEndpointProp *properties) {
    SIM_ENTER();
    SIM_TRY(check(properties));
    if (alignment != NULL) *alignment = SIM_GRANULE_BYTES;
    if (most_bytes != NULL) *most_bytes = 1ull << 40;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuLogicalEndpointCreate(CUlogicalEndpointId id, const CUlogicalEndpointProp *properties) {
    SIM_ENTER();
    SIM_TRY(check(properties));
    if (properties->size == 0 || properties->size % SIM_GRANULE_BYTES != 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    bool is_unmade = id < MOST_ENDPOINTS && endpoints[id].is_reserved && !endpoints[id].is_made;
    if (!is_unmade) return CUDA_ERROR_INVALID_VALUE;
    bool is_unicast = properties->type == CU_LOGICAL_ENDPOINT_TYPE_UNICAST;
    endpoints[id] = (struct endpoint){.is_reserved = true,
                                      .is_made = true,
                                      .properties = *properties,
                                      .team = is_unicast ? 1u << properties->unicast.device : 0};
    return CUDA_SUCCESS;
}

static bool is_whole(const struct endpoint *endpoint) {
    const CUlogicalEndpointProp *properties = &endpoint->properties;
    return properties->type == CU_LOGICAL_ENDPOINT_TYPE_UNICAST ||
           (unsigned)__builtin_popcount(endpoint->team) == properties->multicast.numDevices;
}

SIM_EXPORT CUresult cuLogicalEndpointAddDevice(CUlogicalEndpointId id, CUdevice device) {
    SIM_ENTER();
    SIM_TRY(check_device(device));
    SIM_LOCKED();
    struct endpoint *endpoint = made(id);
    if (endpoint == NULL || is_whole(endpoint) || (endpoint->team & (1u << device)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    endpoint->team |= 1u << device;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuLogicalEndpointQuery(CUlogicalEndpointId first, cuuint32_t count, int *status) {
    SIM_ENTER();
    if (status == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    if (!is_span(first, count)) return CUDA_ERROR_INVALID_VALUE;
    *status = 1;
    for (uint32_t id = first; id < first + count; id++) {
        if (made(id) == NULL) return CUDA_ERROR_INVALID_VALUE;
        endpoints[id].is_queried = is_whole(&endpoints[id]);
        *status = *status != 0 && endpoints[id].is_queried;
    }
    return CUDA_SUCCESS;
}

static bool is_inside(uint64_t offset, uint64_t bytes, uint64_t whole_bytes) {
    return bytes > 0 && offset <= whole_bytes && bytes <= whole_bytes - offset;
}

static CUresult check_bind(const struct endpoint *endpoint, CUdevice device, uint64_t at,
                           const struct sim_physical *memory, uint64_t offset, uint64_t bytes) {
    if (endpoint == NULL || !endpoint->is_queried || memory == NULL || memory->team_size > 0)
        return CUDA_ERROR_INVALID_VALUE;
    if ((at | offset | bytes) % SIM_GRANULE_BYTES != 0) return CUDA_ERROR_INVALID_VALUE;
    if (!is_inside(at, bytes, endpoint->properties.size) || !is_inside(offset, bytes, memory->bytes))
        return CUDA_ERROR_INVALID_VALUE;
    bool is_local = sim_is_device(device) && (endpoint->team & (1u << device)) != 0;
    if (!is_local || (!memory->is_on_host && memory->device != device)) return CUDA_ERROR_INVALID_DEVICE;
    for (const struct binding *other = endpoint->bindings; other != NULL; other = other->next)
        if (other->device == device && other->at < at + bytes && at < other->at + other->bytes)
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult bind(struct endpoint *endpoint, CUdevice device, uint64_t at, struct sim_physical *memory,
                     uint64_t offset, uint64_t bytes) {
    SIM_TRY(check_bind(endpoint, device, at, memory, offset, bytes));
    struct binding *binding = malloc(sizeof(*binding));
    if (binding == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *binding = (struct binding){endpoint->bindings, memory, device, at, bytes};
    endpoint->bindings = binding;
    memory->mapping_count++;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId id, CUdevice device, cuuint64_t at,
                                             CUmemGenericAllocationHandle memory, cuuint64_t offset,
                                             cuuint64_t bytes, unsigned long long flags) {
    SIM_ENTER();
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    return bind(made(id), device, at, sim_physical_of(memory), offset, bytes);
}

/* Memory of pools, which NVIDIA's driver binds as well, has no handle here. */
SIM_EXPORT CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId id, CUdevice device, cuuint64_t at,
                                              void *pointer, cuuint64_t bytes, unsigned long long flags) {
    SIM_ENTER();
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    const struct sim_range *mapping = sim_range_at(&sim_mappings, (uintptr_t)pointer);
    if (mapping == NULL) return CUDA_ERROR_INVALID_VALUE;
    uint64_t offset = mapping->offset + ((uintptr_t)pointer - mapping->start);
    return bind(made(id), device, at, (struct sim_physical *)mapping->handle, offset, bytes);
}

/* Undo the bindings of a device (of all: -1) that lie inside a span; return how many. */
static unsigned unbind(struct endpoint *endpoint, CUdevice device, uint64_t at, uint64_t bytes) {
    unsigned count = 0;
    for (struct binding **place = &endpoint->bindings; *place != NULL;) {
        struct binding *binding = *place;
        bool is_meant = (device < 0 || binding->device == device) && binding->at >= at &&
                        binding->at - at <= bytes && binding->bytes <= bytes - (binding->at - at);
        if (!is_meant) {
            place = &binding->next;
            continue;
        }
        *place = binding->next;
        binding->memory->mapping_count--;
        sim_physical_settle(binding->memory);
        free(binding);
        count++;
    }
    return count;
}

SIM_EXPORT CUresult cuLogicalEndpointUnbind(CUlogicalEndpointId id, CUdevice device, cuuint64_t at,
                                            cuuint64_t bytes) {
    SIM_ENTER();
    SIM_LOCKED();
    struct endpoint *endpoint = made(id);
    if (endpoint == NULL || !sim_is_device(device)) return CUDA_ERROR_INVALID_VALUE;
    return unbind(endpoint, device, at, bytes) > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuLogicalEndpointDestroy(CUlogicalEndpointId id) {
    SIM_ENTER();
    SIM_LOCKED();
    struct endpoint *endpoint = made(id);
    if (endpoint == NULL) return CUDA_ERROR_INVALID_VALUE;
    unbind(endpoint, -1, 0, UINT64_MAX);
    *endpoint = (struct endpoint){.is_reserved = true};
    return CUDA_SUCCESS;
}
