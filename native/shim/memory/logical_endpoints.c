/* Logical endpoints take no memory, and memory that is bound to one cannot be freed: as with multicast
 * objects, a binding is a reference, which ends when it is undone or when its endpoint is destroyed. */
#include "functions.h"
#include "memory/vmm.h"
#include "slice/holdings.h"
#include "slice/slice.h"

/* Apart from the numbers of allocations, which own the bindings of multicast objects. */
static uint64_t object_of(CUlogicalEndpointId endpoint) {
    return (1ull << 63) | endpoint;
}

PGPU_EXPORT CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId endpoint, CUdevice ordinal,
                                              cuuint64_t offset, CUmemGenericAllocationHandle memory,
                                              cuuint64_t memory_offset, cuuint64_t bytes,
                                              unsigned long long flags) {
    uint64_t held = pgpu_vmm_hold(memory, NULL);
    CUresult result =
        PGPU_REAL(cuLogicalEndpointBindMem)(endpoint, ordinal, offset, memory, memory_offset, bytes, flags);
    return pgpu_vmm_finish_bind(object_of(endpoint), offset, pgpu_slice_gpu_of(ordinal), held, result);
}

PGPU_EXPORT CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId endpoint, CUdevice ordinal,
                                               cuuint64_t offset, void *address, cuuint64_t bytes,
                                               unsigned long long flags) {
    uint64_t held = pgpu_vmm_hold_at((uint64_t)address, NULL);
    CUresult result = PGPU_REAL(cuLogicalEndpointBindAddr)(endpoint, ordinal, offset, address, bytes, flags);
    return pgpu_vmm_finish_bind(object_of(endpoint), offset, pgpu_slice_gpu_of(ordinal), held, result);
}

struct span {
    uint64_t object, offset, bytes;
    int gpu; /* PGPU_NO_GPU: of any */
    uint64_t found;
};

static bool is_inside(const struct pgpu_holding *binding, void *context) {
    struct span *span = context;
    bool is_there = binding->object == span->object && binding->offset - span->offset < span->bytes;
    bool is_meant = is_there && (span->gpu == PGPU_NO_GPU || binding->gpu == span->gpu);
    if (is_meant) span->found = binding->key;
    return is_meant;
}

static void drop_all(struct span span) {
    struct pgpu_holding row;
    while (pgpu_holdings_visit(PGPU_KIND_BINDING, is_inside, &span))
        if (pgpu_holdings_take(PGPU_KIND_BINDING, span.found, &row)) pgpu_vmm_drop(row.bound);
}

/* One call may undo several bindings, which lie wholly inside its span. */
PGPU_EXPORT CUresult cuLogicalEndpointUnbind(CUlogicalEndpointId endpoint, CUdevice ordinal,
                                             cuuint64_t offset, cuuint64_t bytes) {
    CUresult result = PGPU_REAL(cuLogicalEndpointUnbind)(endpoint, ordinal, offset, bytes);
    int gpu = pgpu_slice_gpu_of(ordinal);
    if (result == CUDA_SUCCESS && gpu != PGPU_NO_GPU)
        drop_all((struct span){object_of(endpoint), offset, bytes, gpu, 0});
    return result;
}

PGPU_EXPORT CUresult cuLogicalEndpointDestroy(CUlogicalEndpointId endpoint) {
    CUresult result = PGPU_REAL(cuLogicalEndpointDestroy)(endpoint);
    if (result == CUDA_SUCCESS) drop_all((struct span){object_of(endpoint), 0, UINT64_MAX, PGPU_NO_GPU, 0});
    return result;
}
