/* Multicast objects: one span of addresses that stands for the same span of memory on each device of a team.
 * Kernels, which alone write to all of a team at once, compute nothing here; so an address shows the memory
 * that was bound there first. Teams live in one process: such an object cannot be exported. */
#include <stdlib.h>

#include "vmm/vmm.h"

struct sim_binding {
    struct sim_binding *next;
    struct sim_physical *memory;
    size_t at, offset, bytes; /* in the object, in the memory */
};

static CUresult check_support(void) {
    for (CUdevice device = 0; device < sim_driver.device_count; device++)
        if (sim_gpu_of(device)->compute_major >= 9) return CUDA_SUCCESS;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult check_properties(const CUmulticastObjectProp *properties) {
    SIM_TRY(check_support());
    if (properties == NULL || properties->flags != 0 || properties->size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->numDevices == 0 || properties->numDevices > (unsigned)sim_driver.device_count)
        return CUDA_ERROR_INVALID_VALUE;
    return properties->handleTypes == CU_MEM_HANDLE_TYPE_NONE ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

SIM_EXPORT CUresult cuMulticastGetGranularity(size_t *bytes, const CUmulticastObjectProp *properties,
                                              CUmulticastGranularity_flags option) {
    SIM_ENTER();
    SIM_TRY(check_properties(properties));
    if (bytes == NULL || (unsigned)option > CU_MULTICAST_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    *bytes = SIM_GRANULE_BYTES;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle,
                                      const CUmulticastObjectProp *properties) {
    SIM_ENTER();
    SIM_TRY(check_properties(properties));
    if (handle == NULL || properties->size % SIM_GRANULE_BYTES != 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    struct sim_physical *object = sim_new(&sim_physicals);
    if (object == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    object->bytes = properties->size;
    object->file = -1;
    object->handle_count = 1;
    object->team_size = properties->numDevices;
    *handle = (uintptr_t)object;
    return CUDA_SUCCESS;
}

static struct sim_physical *object_of(CUmemGenericAllocationHandle handle) {
    struct sim_physical *object = sim_physical_of(handle);
    return object != NULL && object->team_size > 0 ? object : NULL;
}

SIM_EXPORT CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device) {
    SIM_ENTER();
    SIM_LOCKED();
    struct sim_physical *object = object_of(handle);
    if (object == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (sim_gpu_of(device)->compute_major < 9) return CUDA_ERROR_NOT_SUPPORTED;
    bool is_full = (unsigned)__builtin_popcount(object->team) == object->team_size;
    if (is_full || (object->team & (1u << device)) != 0) return CUDA_ERROR_INVALID_VALUE;
    object->team |= 1u << device;
    return CUDA_SUCCESS;
}

static bool is_bound(const struct sim_physical *object, CUdevice device, size_t at, size_t bytes) {
    for (const struct sim_binding *binding = object->bindings; binding != NULL; binding = binding->next)
        if (binding->memory->device == device && binding->at < at + bytes &&
            at < binding->at + binding->bytes)
            return true;
    return false;
}

static bool is_inside(size_t offset, size_t bytes, size_t whole_bytes) {
    return offset <= whole_bytes && bytes <= whole_bytes - offset;
}

static CUresult check_binding(const struct sim_physical *object, size_t at, const struct sim_physical *memory,
                              size_t offset, size_t bytes) {
    if (object == NULL || memory == NULL || memory->team_size > 0 || memory->is_on_host)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes == 0 || (at | offset | bytes) % SIM_GRANULE_BYTES != 0) return CUDA_ERROR_INVALID_VALUE;
    if (!is_inside(at, bytes, object->bytes) || !is_inside(offset, bytes, memory->bytes))
        return CUDA_ERROR_INVALID_VALUE;
    /* A team is complete before anything is bound. */
    if ((unsigned)__builtin_popcount(object->team) != object->team_size) return CUDA_ERROR_NOT_PERMITTED;
    if ((object->team & (1u << memory->device)) == 0) return CUDA_ERROR_INVALID_DEVICE;
    return is_bound(object, memory->device, at, bytes) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* Show a binding where the object is mapped already. */
static void show(struct sim_physical *object) {
    for (struct sim_range *mapping = sim_range_after(&sim_mappings, 0); mapping != NULL;
         mapping = sim_range_after(&sim_mappings, mapping->start + 1))
        if (mapping->handle == (uintptr_t)object)
            sim_multicast_map(object, mapping->start, mapping->bytes, mapping->offset);
}

static CUresult bind(struct sim_physical *object, size_t at, struct sim_physical *memory, size_t offset,
                     size_t bytes) {
    SIM_TRY(check_binding(object, at, memory, offset, bytes));
    struct sim_binding *binding = malloc(sizeof(*binding)), **end = &object->bindings;
    if (binding == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *binding = (struct sim_binding){NULL, memory, at, offset, bytes};
    while (*end != NULL)
        end = &(*end)->next;
    *end = binding;
    memory->mapping_count++;
    show(object);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t at,
                                       CUmemGenericAllocationHandle memory, size_t offset, size_t bytes,
                                       unsigned long long flags) {
    SIM_ENTER();
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    return bind(object_of(handle), at, sim_physical_of(memory), offset, bytes);
}

SIM_EXPORT CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle handle, CUdevice device, size_t at,
                                          CUmemGenericAllocationHandle memory, size_t offset, size_t bytes,
                                          unsigned long long flags) {
    SIM_ENTER();
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    struct sim_physical *physical = sim_physical_of(memory);
    if (physical != NULL && physical->device != device) return CUDA_ERROR_INVALID_DEVICE;
    return bind(object_of(handle), at, physical, offset, bytes);
}

SIM_EXPORT CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle handle, CUdevice device, size_t at,
                                           CUdeviceptr address, size_t bytes, unsigned long long flags) {
    SIM_ENTER();
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    const struct sim_range *mapping = sim_range_at(&sim_mappings, address);
    if (mapping == NULL || !is_inside(address - mapping->start, bytes, mapping->bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (mapping->device != device) return CUDA_ERROR_INVALID_DEVICE;
    return bind(object_of(handle), at, (struct sim_physical *)mapping->handle,
                mapping->offset + (address - mapping->start), bytes);
}

static CUdevice device_at(CUdeviceptr address) {
    SIM_LOCKED();
    const struct sim_range *mapping = sim_range_at(&sim_mappings, address);
    return mapping == NULL ? CU_DEVICE_INVALID : mapping->device;
}

SIM_EXPORT CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t at, CUdeviceptr address,
                                        size_t bytes, unsigned long long flags) {
    return cuMulticastBindAddr_v2(handle, device_at(address), at, address, bytes, flags);
}

static void drop(struct sim_binding **at) {
    struct sim_binding *binding = *at;
    *at = binding->next;
    binding->memory->mapping_count--;
    sim_physical_settle(binding->memory);
    free(binding);
}

SIM_EXPORT CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
                                      size_t bytes) {
    SIM_ENTER();
    SIM_LOCKED();
    struct sim_physical *object = object_of(handle);
    if (object == NULL || !sim_is_device(device)) return CUDA_ERROR_INVALID_VALUE;
    for (struct sim_binding **at = &object->bindings; *at != NULL; at = &(*at)->next) {
        const struct sim_binding *binding = *at;
        if (binding->memory->device != device || binding->at != offset || binding->bytes != bytes) continue;
        drop(at);
        show(object);
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

void sim_multicast_end(struct sim_physical *object) {
    while (object->bindings != NULL)
        drop(&object->bindings);
}

/* The part of a binding that lies in a span of the object. Later bindings first, so that the first shows. */
static bool map_binding(const struct sim_binding *binding, uintptr_t at, size_t bytes, size_t offset) {
    if (binding == NULL) return true;
    if (!map_binding(binding->next, at, bytes, offset)) return false;
    size_t from = binding->at > offset ? binding->at : offset;
    size_t binding_end = binding->at + binding->bytes, end = offset + bytes;
    size_t to = binding_end < end ? binding_end : end;
    return from >= to || sim_physical_map(binding->memory, at + (from - offset), to - from,
                                          binding->offset + (from - binding->at));
}

bool sim_multicast_map(const struct sim_physical *object, uintptr_t at, size_t bytes, size_t offset) {
    sim_address_clear(at, bytes);
    return map_binding(object->bindings, at, bytes, offset);
}
