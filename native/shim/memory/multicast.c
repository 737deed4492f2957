/* Multicast objects take no memory, and memory that is bound to one cannot be freed: a binding is a
 * reference, which ends when it is undone or when its object goes with its last handle and mapping
 * (pgpu_vmm_drop). */
#include "functions.h"
#include "memory/vmm.h"
#include "slice/holdings.h"
#include "slice/slice.h"

PGPU_EXPORT CUresult cuMulticastCreate(CUmemGenericAllocationHandle *object,
                                       const CUmulticastObjectProp *properties) {
    CUresult result = PGPU_REAL(cuMulticastCreate)(object, properties);
    if (result == CUDA_SUCCESS) pgpu_vmm_note_allocation(*object, PGPU_NO_GPU, 0, PGPU_VMM_IS_MULTICAST);
    return result;
}

static void become_multicast(struct pgpu_holding *allocation, void *unused) {
    (void)unused;
    if (allocation->bytes == 0) allocation->role = PGPU_VMM_IS_MULTICAST;
}

/* The row of the object, 0 if there is none. An object of another process was imported as memory is, and its
 * row is marked here. Memory bound to an object without a row stays counted until the process ends. */
static uint64_t object_of(CUmemGenericAllocationHandle handle) {
    struct pgpu_holding row;
    if (!pgpu_holdings_find(PGPU_KIND_HANDLE, handle, &row)) return 0;
    pgpu_holdings_edit(PGPU_KIND_ALLOCATION, row.allocation, become_multicast, NULL);
    return row.allocation;
}

static CUresult finish_bind(CUmemGenericAllocationHandle object, size_t offset, int gpu, uint64_t allocation,
                            CUresult result) {
    return pgpu_vmm_finish_bind(object_of(object), offset, gpu, allocation, result);
}

PGPU_EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t offset,
                                        CUmemGenericAllocationHandle memory, size_t memory_offset,
                                        size_t bytes, unsigned long long flags) {
    int gpu = PGPU_NO_GPU;
    uint64_t held = pgpu_vmm_hold(memory, &gpu);
    return finish_bind(object, offset, gpu, held,
                       PGPU_REAL(cuMulticastBindMem)(object, offset, memory, memory_offset, bytes, flags));
}

PGPU_EXPORT CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice ordinal,
                                           size_t offset, CUmemGenericAllocationHandle memory,
                                           size_t memory_offset, size_t bytes, unsigned long long flags) {
    uint64_t held = pgpu_vmm_hold(memory, NULL);
    CUresult result =
        PGPU_REAL(cuMulticastBindMem_v2)(object, ordinal, offset, memory, memory_offset, bytes, flags);
    return finish_bind(object, offset, pgpu_slice_gpu_of(ordinal), held, result);
}

PGPU_EXPORT CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t offset,
                                         CUdeviceptr address, size_t bytes, unsigned long long flags) {
    int gpu = PGPU_NO_GPU;
    uint64_t held = pgpu_vmm_hold_at(address, &gpu);
    return finish_bind(object, offset, gpu, held,
                       PGPU_REAL(cuMulticastBindAddr)(object, offset, address, bytes, flags));
}

PGPU_EXPORT CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice ordinal,
                                            size_t offset, CUdeviceptr address, size_t bytes,
                                            unsigned long long flags) {
    uint64_t held = pgpu_vmm_hold_at(address, NULL);
    CUresult result = PGPU_REAL(cuMulticastBindAddr_v2)(object, ordinal, offset, address, bytes, flags);
    return finish_bind(object, offset, pgpu_slice_gpu_of(ordinal), held, result);
}

struct search {
    uint64_t object, offset;
    int gpu;
    uint64_t found;
};

static bool matches(const struct pgpu_holding *binding, void *context) {
    struct search *search = context;
    bool is_meant =
        binding->object == search->object && binding->offset == search->offset && binding->gpu == search->gpu;
    if (is_meant) search->found = binding->key;
    return is_meant;
}

/* Offset and size must be those of the binding, so that one call undoes one. */
PGPU_EXPORT CUresult cuMulticastUnbind(CUmemGenericAllocationHandle object, CUdevice ordinal, size_t offset,
                                       size_t bytes) {
    struct pgpu_holding row;
    CUresult result = PGPU_REAL(cuMulticastUnbind)(object, ordinal, offset, bytes);
    struct search search = {.object = object_of(object), .offset = offset, .gpu = pgpu_slice_gpu_of(ordinal)};
    if (result == CUDA_SUCCESS && search.object != 0 &&
        pgpu_holdings_visit(PGPU_KIND_BINDING, matches, &search) &&
        pgpu_holdings_take(PGPU_KIND_BINDING, search.found, &row))
        pgpu_vmm_drop(row.bound);
    return result;
}
