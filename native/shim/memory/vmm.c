/* Virtual memory management: physical memory is charged when it is made, to the device it is made on, and
 * refunded with the last of its handles and mappings.
 *
 * The row of an ALLOCATION has a number of our own as its key and counts its references: the rows of its
 * HANDLEs and MAPPINGs, and those of multicast.c and exported_memory.c. */
#include "slice/charge.h"
#include "functions.h"
#include "slice/holdings.h"
#include "slice/slice.h"
#include "memory/vmm.h"

bool pgpu_vmm_is_on_host(const CUmemLocation *location) {
    return location->type == CU_MEM_LOCATION_TYPE_HOST || location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
           location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

CUdevice pgpu_vmm_ordinal_of(const CUmemLocation *location) {
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN ? location->localized.deviceId
                                                                         : location->id;
}

bool pgpu_vmm_is_charged(const CUmemLocation *location) {
    CUdevice ordinal = pgpu_vmm_ordinal_of(location);
    /* What does not exist is the driver's to refuse. */
    return !pgpu_vmm_is_on_host(location) && ordinal >= 0 && ordinal < pgpu_slice_device_count();
}

uint64_t pgpu_vmm_next_number(void) {
    static uint64_t last;
    return __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
}

static void note_handle(uint64_t handle, uint64_t allocation) {
    struct pgpu_holding row = {.key = handle, .allocation = allocation, .count = 1, .kind = PGPU_KIND_HANDLE};
    pgpu_holdings_put(&row);
}

void pgpu_vmm_note_allocation(CUmemGenericAllocationHandle handle, int gpu, uint64_t bytes, uint64_t role) {
    struct pgpu_holding row = {.key = pgpu_vmm_next_number(),
                               .bytes = bytes,
                               .role = role,
                               .count = 1,
                               .kind = PGPU_KIND_ALLOCATION,
                               .gpu = (int8_t)gpu};
    pgpu_holdings_put(&row);
    note_handle(handle, row.key);
}

/* `context`: the object's number, replaced by the number of a binding of it. */
static bool find_binding(const struct pgpu_holding *binding, void *context) {
    uint64_t *number = context;
    if (binding->object != *number) return false;
    *number = binding->key;
    return true;
}

void pgpu_vmm_drop(uint64_t allocation) {
    struct pgpu_holding row, binding;
    if (pgpu_holdings_count(PGPU_KIND_ALLOCATION, allocation, -1, &row) != 0) return;
    pgpu_charge_refund(row.gpu, row.bytes);
    if (row.role != PGPU_VMM_IS_MULTICAST) return;
    for (uint64_t found = allocation; pgpu_holdings_visit(PGPU_KIND_BINDING, find_binding, &found);
         found = allocation)
        if (pgpu_holdings_take(PGPU_KIND_BINDING, found, &binding)) pgpu_vmm_drop(binding.bound);
}

CUresult pgpu_vmm_finish_bind(uint64_t object, uint64_t offset, int gpu, uint64_t allocation,
                              CUresult result) {
    struct pgpu_holding row = {.key = pgpu_vmm_next_number(),
                               .object = object,
                               .offset = offset,
                               .bound = allocation,
                               .count = 1,
                               .kind = PGPU_KIND_BINDING,
                               .gpu = (int8_t)gpu};
    if (allocation != 0 && result == CUDA_SUCCESS) pgpu_holdings_put(&row);
    if (allocation != 0 && result != CUDA_SUCCESS) pgpu_vmm_drop(allocation);
    return result;
}

static uint64_t hold(uint64_t allocation, int *gpu) {
    struct pgpu_holding row;
    if (pgpu_holdings_count(PGPU_KIND_ALLOCATION, allocation, +1, &row) < 0) return 0;
    if (gpu != NULL) *gpu = row.gpu;
    return allocation;
}

uint64_t pgpu_vmm_hold(CUmemGenericAllocationHandle handle, int *gpu) {
    struct pgpu_holding row;
    return pgpu_holdings_find(PGPU_KIND_HANDLE, handle, &row) ? hold(row.allocation, gpu) : 0;
}

PGPU_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                                 const CUmemAllocationProp *properties, unsigned long long flags) {
    struct pgpu_charge charge;
    if (properties == NULL || !pgpu_vmm_is_charged(&properties->location))
        return PGPU_REAL(cuMemCreate)(handle, bytes, properties, flags);
    int gpu = pgpu_slice_gpu_of(pgpu_vmm_ordinal_of(&properties->location));
    CUresult result = pgpu_charge_begin(&charge, gpu, bytes);
    if (result != CUDA_SUCCESS) return result;
    do
        result = PGPU_REAL(cuMemCreate)(handle, bytes, properties, flags);
    while (pgpu_charge_should_retry(&charge, result));
    if (result == CUDA_SUCCESS) pgpu_vmm_note_allocation(*handle, gpu, bytes, 0);
    return result;
}

PGPU_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared,
                                                    CUmemAllocationHandleType type) {
    CUmemAllocationProp properties;
    if (!pgpu_holdings_have_room()) return CUDA_ERROR_OUT_OF_MEMORY;
    pgpu_slice_forbid_checkpoint();
    CUresult result = PGPU_REAL(cuMemImportFromShareableHandle)(handle, shared, type);
    if (result != CUDA_SUCCESS || pgpu_holdings_count(PGPU_KIND_HANDLE, *handle, +1, NULL) > 0) return result;
    /* A multicast object has no such properties; it has a row for what will be bound to it. */
    bool is_charged =
        PGPU_REAL(cuMemGetAllocationPropertiesFromHandle)(&properties, *handle) == CUDA_SUCCESS &&
        pgpu_vmm_is_charged(&properties.location);
    int gpu = is_charged ? pgpu_slice_gpu_of(pgpu_vmm_ordinal_of(&properties.location)) : PGPU_NO_GPU;
    pgpu_vmm_note_allocation(*handle, gpu, 0, is_charged ? PGPU_VMM_GROWS_WHEN_MAPPED : 0);
    return result;
}

/* Putting the row back after a refusal undoes taking it. */
PGPU_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct pgpu_holding row;
    int64_t left = pgpu_holdings_count(PGPU_KIND_HANDLE, handle, -1, &row);
    CUresult result = PGPU_REAL(cuMemRelease)(handle);
    if (left < 0) return result;
    if (result != CUDA_SUCCESS && pgpu_holdings_count(PGPU_KIND_HANDLE, handle, +1, NULL) < 0)
        note_handle(handle, row.allocation);
    if (result == CUDA_SUCCESS && left == 0) pgpu_vmm_drop(row.allocation);
    return result;
}

struct search {
    uint64_t address;
    uint64_t allocation; /* 0: none */
    uint64_t end;
};

static bool covers(const struct pgpu_holding *mapping, void *context) {
    struct search *search = context;
    bool is_inside = search->address - mapping->key < mapping->mapped_bytes;
    if (is_inside) search->allocation = mapping->allocation;
    if (is_inside) search->end = mapping->key + mapping->mapped_bytes;
    return is_inside;
}

uint64_t pgpu_vmm_hold_at(uint64_t address, int *gpu) {
    struct search search = {.address = address};
    return pgpu_holdings_visit(PGPU_KIND_MAPPING, covers, &search) ? hold(search.allocation, gpu) : 0;
}

uint64_t pgpu_vmm_mapping_end(uint64_t address) {
    struct search search = {.address = address};
    return pgpu_holdings_visit(PGPU_KIND_MAPPING, covers, &search) ? search.end : 0;
}

/* The driver may answer with the handle that cuMemCreate gave or with a new one for the same memory. */
PGPU_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    CUresult result = PGPU_REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result != CUDA_SUCCESS || pgpu_holdings_count(PGPU_KIND_HANDLE, *handle, +1, NULL) > 0) return result;
    uint64_t held = pgpu_vmm_hold_at((uint64_t)address, NULL);
    if (held != 0) note_handle(*handle, held);
    return result;
}

struct growth {
    uint64_t needed_bytes;
    uint64_t missing_bytes;
    int gpu;
};

static void find_missing(struct pgpu_holding *allocation, void *context) {
    struct growth *growth = context;
    growth->gpu = allocation->gpu;
    if (allocation->role != PGPU_VMM_GROWS_WHEN_MAPPED || allocation->bytes >= growth->needed_bytes) return;
    growth->missing_bytes = growth->needed_bytes - allocation->bytes;
    allocation->bytes = growth->needed_bytes;
}

static void take_missing_back(struct pgpu_holding *allocation, void *context) {
    allocation->bytes -= ((struct growth *)context)->missing_bytes;
}

/* Imported memory is charged as far as it is mapped. */
static CUresult charge_growth(uint64_t allocation, uint64_t needed_bytes) {
    struct pgpu_charge charge;
    struct growth growth = {.needed_bytes = needed_bytes};
    pgpu_holdings_edit(PGPU_KIND_ALLOCATION, allocation, find_missing, &growth);
    if (growth.missing_bytes == 0) return CUDA_SUCCESS;
    CUresult result = pgpu_charge_begin(&charge, growth.gpu, growth.missing_bytes);
    if (result != CUDA_SUCCESS)
        pgpu_holdings_edit(PGPU_KIND_ALLOCATION, allocation, take_missing_back, &growth);
    return result;
}

static CUresult map_known(CUdeviceptr address, size_t bytes, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags,
                          uint64_t allocation) {
    struct pgpu_holding mapping = {.key = address,
                                   .allocation = allocation,
                                   .mapped_bytes = bytes,
                                   .count = 1,
                                   .kind = PGPU_KIND_MAPPING};
    CUresult result = charge_growth(allocation, (uint64_t)offset + bytes);
    if (result != CUDA_SUCCESS) return result;
    result = PGPU_REAL(cuMemMap)(address, bytes, offset, handle, flags);
    if (result == CUDA_SUCCESS) pgpu_holdings_put(&mapping);
    return result;
}

PGPU_EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                              CUmemGenericAllocationHandle handle, unsigned long long flags) {
    uint64_t held = pgpu_vmm_hold(handle, NULL);
    if (held == 0) return PGPU_REAL(cuMemMap)(address, bytes, offset, handle, flags);
    CUresult result = map_known(address, bytes, offset, handle, flags, held);
    if (result != CUDA_SUCCESS) pgpu_vmm_drop(held);
    return result;
}

/* The driver unmaps whole mappings only; one call may name several that lie end to end. */
PGPU_EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    struct pgpu_holding mapping;
    CUresult result = PGPU_REAL(cuMemUnmap)(address, bytes);
    if (result != CUDA_SUCCESS) return result;
    for (uint64_t at = address; at - address < bytes; at += mapping.mapped_bytes) {
        if (!pgpu_holdings_take(PGPU_KIND_MAPPING, at, &mapping)) break;
        pgpu_vmm_drop(mapping.allocation);
    }
    return result;
}

/* Tiles of sparse arrays. Which tile holds which memory is not followed: memory that was once mapped into an
 * array stays counted until the process ends. */
static void note_tile(const CUarrayMapInfo *tile) {
    if (tile->memOperationType == CU_MEM_OPERATION_TYPE_MAP) pgpu_vmm_hold(tile->memHandle.memHandle, NULL);
}

PGPU_EXPORT CUresult cuMemMapArrayAsync(CUarrayMapInfo *tiles, unsigned int count, CUstream stream) {
    CUresult result = PGPU_REAL(cuMemMapArrayAsync)(tiles, count, stream);
    for (unsigned int tile = 0; result == CUDA_SUCCESS && tile < count; tile++)
        note_tile(&tiles[tile]);
    return result;
}

PGPU_EXPORT CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *tiles, unsigned int count, CUstream stream) {
    CUresult result = PGPU_REAL(cuMemMapArrayAsync_ptsz)(tiles, count, stream);
    for (unsigned int tile = 0; result == CUDA_SUCCESS && tile < count; tile++)
        note_tile(&tiles[tile]);
    return result;
}
