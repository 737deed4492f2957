/* Virtual memory management: addresses, physical memory, and the mappings between them. */
#include "vmm/vmm.h"

static CUresult check_properties(const CUmemAllocationProp *properties) {
    if (properties == NULL || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)properties->location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return sim_is_device(properties->location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult check_handle_types(CUmemAllocationHandleType types) {
    const unsigned known = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return ((unsigned)types & ~known) == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

SIM_EXPORT CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties,
                                                  CUmemAllocationGranularity_flags option) {
    SIM_ENTER();
    if (bytes == NULL || (unsigned)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check_properties(properties));
    *bytes = SIM_GRANULE_BYTES;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                                const CUmemAllocationProp *properties, unsigned long long flags) {
    SIM_ENTER();
    if (handle == NULL || bytes == 0 || bytes % SIM_GRANULE_BYTES != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check_properties(properties));
    SIM_TRY(check_handle_types(properties->requestedHandleTypes));
    bool is_on_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    unsigned gpu = is_on_device ? sim_driver.gpu_of_device[properties->location.id] : 0;
    if (is_on_device) SIM_TRY(sim_device_reserve(gpu, bytes));
    SIM_LOCKED();
    struct sim_physical *physical;
    CUresult result = sim_physical_new(properties, bytes, &physical);
    if (result == CUDA_SUCCESS)
        *handle = (uintptr_t)physical;
    else if (is_on_device)
        sim_device_refund(gpu, bytes);
    return result;
}

SIM_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    SIM_ENTER();
    SIM_LOCKED();
    struct sim_physical *physical = sim_physical_of(handle);
    if (physical == NULL) return CUDA_ERROR_INVALID_VALUE;
    physical->handle_count--;
    sim_physical_settle(physical);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    SIM_ENTER();
    if (handle == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    const struct sim_range *mapping = sim_range_at(&sim_mappings, (uintptr_t)address);
    if (mapping == NULL) return CUDA_ERROR_INVALID_VALUE;
    ((struct sim_physical *)mapping->handle)->handle_count++;
    *handle = mapping->handle;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                           CUmemGenericAllocationHandle handle) {
    SIM_ENTER();
    if (properties == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    const struct sim_physical *physical = sim_physical_of(handle);
    if (physical == NULL || physical->team_size > 0) return CUDA_ERROR_INVALID_VALUE;
    *properties = physical->properties;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment,
                                        CUdeviceptr hint, unsigned long long flags) {
    SIM_ENTER();
    (void)hint; /* a wish that the driver may refuse */
    if (address == NULL || bytes == 0 || bytes % SIM_GRANULE_BYTES != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if ((alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (alignment < SIM_GRANULE_BYTES) alignment = SIM_GRANULE_BYTES;
    SIM_LOCKED();
    uintptr_t start = sim_backing_map(bytes, alignment);
    struct sim_range *range = start == 0 ? NULL : sim_range_new(SIM_RESERVATION, start, bytes);
    if (range == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    sim_address_clear(start, bytes);
    range->backed_bytes = bytes;
    *address = start;
    return CUDA_SUCCESS;
}

static bool has_mapping(uintptr_t address, size_t bytes) {
    const struct sim_range *first = sim_range_at(&sim_mappings, address);
    if (first == NULL) first = sim_range_after(&sim_mappings, address);
    return first != NULL && first->start < address + bytes;
}

SIM_EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    SIM_ENTER();
    SIM_LOCKED();
    struct sim_range *range = sim_range_from(&sim_ranges, address);
    if (range == NULL || range->kind != SIM_RESERVATION || range->bytes != bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (has_mapping(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    sim_range_free(range);
    return CUDA_SUCCESS;
}

static bool is_inside_reservation(uintptr_t address, size_t bytes) {
    const struct sim_range *range = sim_range_at(&sim_ranges, address);
    return range != NULL && range->kind == SIM_RESERVATION &&
           bytes <= range->bytes - (address - range->start);
}

static bool is_granular(uintptr_t address, size_t bytes) {
    return bytes > 0 && (address | bytes) % SIM_GRANULE_BYTES == 0;
}

SIM_EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                             CUmemGenericAllocationHandle handle, unsigned long long flags) {
    SIM_ENTER();
    if (!is_granular(address, bytes) || offset % SIM_GRANULE_BYTES != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    struct sim_physical *physical = sim_physical_of(handle);
    if (physical == NULL || offset > physical->bytes || bytes > physical->bytes - offset)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_inside_reservation(address, bytes) || has_mapping(address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_range *mapping = sim_range_new(SIM_MAPPING, address, bytes);
    if (mapping == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!sim_physical_map(physical, address, bytes, offset)) {
        sim_range_delete(mapping);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    mapping->handle = (uintptr_t)physical;
    mapping->offset = offset;
    mapping->gpu = physical->gpu;
    mapping->device = physical->device;
    physical->mapping_count++;
    return CUDA_SUCCESS;
}

/* Whether whole mappings fill [address, address + bytes) exactly. */
static bool is_exactly_mapped(uintptr_t address, size_t bytes) {
    uintptr_t end = address + bytes;
    while (address < end) {
        const struct sim_range *mapping = sim_range_from(&sim_mappings, address);
        if (mapping == NULL) return false;
        address += mapping->bytes;
    }
    return address == end;
}

static void unmap_first(uintptr_t address, size_t *bytes) {
    struct sim_range *mapping = sim_range_from(&sim_mappings, address);
    struct sim_physical *physical = (struct sim_physical *)mapping->handle;
    *bytes = mapping->bytes;
    sim_address_clear(address, *bytes);
    sim_range_delete(mapping);
    physical->mapping_count--;
    sim_physical_settle(physical);
}

SIM_EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    SIM_ENTER();
    if (!is_granular(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    if (!is_exactly_mapped(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t done = 0, step; done < bytes; done += step)
        unmap_first(address + done, &step);
    return CUDA_SUCCESS;
}

static CUresult check_access(const CUmemAccessDesc *wanted, size_t count) {
    for (size_t i = 0; i < count; i++) {
        bool is_device = wanted[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE;
        if (is_device && !sim_is_device(wanted[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
        if (wanted[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ) return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *wanted,
                                   size_t count) {
    SIM_ENTER();
    if (!is_granular(address, bytes) || wanted == NULL || count == 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check_access(wanted, count));
    SIM_LOCKED();
    if (!is_exactly_mapped(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t done = 0; done < bytes;) {
        struct sim_range *mapping = sim_range_from(&sim_mappings, address + done);
        mapping->is_accessible = wanted[0].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        done += mapping->bytes;
    }
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                                   CUdeviceptr address) {
    SIM_ENTER();
    if (flags == NULL || location == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    const struct sim_range *mapping = sim_range_at(&sim_mappings, address);
    if (mapping == NULL) return CUDA_ERROR_INVALID_VALUE;
    *flags = mapping->is_accessible ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}
