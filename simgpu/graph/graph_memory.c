/* Memory that graphs allocate while they run: its addresses are the nodes', its bytes come from a pool that
 * each device keeps for graphs. */
#include <stdlib.h>
#include <string.h>

#include "graph/graph.h"
#include "pool/pool.h"

static CUmemoryPool graph_pools[SIM_MAX_GPUS];

static CUmemoryPool pool_of(CUdevice device) {
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    if (graph_pools[device] == NULL)
        graph_pools[device] = sim_pool_new(device, CU_MEM_ALLOCATION_TYPE_PINNED, &location);
    /* Graph memory stays reserved until it is trimmed. */
    if (graph_pools[device] != NULL) graph_pools[device]->release_threshold_bytes = UINT64_MAX;
    return graph_pools[device];
}

struct sim_graph_memory *sim_graph_memory_new(CUdevice device, size_t bytes) {
    struct sim_graph_memory *memory = calloc(1, sizeof(*memory));
    if (memory == NULL) return NULL;
    *memory = (struct sim_graph_memory){.holders = 1, .device = device, .bytes = sim_round_up(bytes, 512)};
    memory->address = sim_backing_map(memory->bytes, 512);
    if (memory->address != 0) return memory;
    free(memory);
    return NULL;
}

static struct sim_range *live_range(const struct sim_graph_memory *memory) {
    return sim_range_from(&sim_ranges, memory->address);
}

bool sim_graph_memory_is_live(const struct sim_graph_memory *memory) {
    return live_range(memory) != NULL;
}

/* An allocation outlives its graph: from then on it owns its addresses. */
void sim_graph_memory_drop(struct sim_graph_memory *memory) {
    if (--memory->holders > 0) return;
    struct sim_range *range = live_range(memory);
    if (range != NULL)
        range->backed_bytes = memory->bytes;
    else
        sim_backing_unmap(memory->address, memory->bytes);
    free(memory);
}

CUresult sim_graph_memory_allocate(struct sim_graph_memory *memory, CUcontext context) {
    CUmemoryPool pool = pool_of(memory->device);
    if (pool == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    SIM_TRY(sim_pool_take(pool, memory->bytes));
    struct sim_range *range = sim_range_new(SIM_POOLED, memory->address, memory->bytes);
    if (range == NULL) {
        pool->used_bytes -= memory->bytes;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    range->pooled_bytes = memory->bytes;
    range->gpu = pool->gpu;
    range->device = memory->device;
    range->context = context;
    range->pool = pool;
    return CUDA_SUCCESS;
}

CUresult sim_graph_memory_prepare(CUdevice device, uint64_t bytes) {
    CUmemoryPool pool = bytes == 0 ? NULL : pool_of(device);
    return pool == NULL ? CUDA_SUCCESS : sim_pool_prepare(pool, bytes);
}

void sim_graph_memory_free(struct sim_graph_memory *memory) {
    struct sim_range *range = live_range(memory);
    if (range != NULL) sim_pool_free(range);
}

static CUresult check(CUdevice device, const void *value) {
    if (value == NULL) return CUDA_ERROR_INVALID_VALUE;
    return sim_is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static uint64_t *word_of(CUmemoryPool pool, CUgraphMem_attribute name) {
    switch ((int)name) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
        return &pool->used_bytes;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
        return &pool->used_high_bytes;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
        return &pool->reserved_bytes;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
        return &pool->reserved_high_bytes;
    default:
        return NULL;
    }
}

SIM_EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute name, void *value) {
    SIM_ENTER();
    SIM_TRY(check(device, value));
    SIM_LOCKED();
    CUmemoryPool pool = pool_of(device);
    const uint64_t *word = pool == NULL ? NULL : word_of(pool, name);
    if (word == NULL) return CUDA_ERROR_INVALID_VALUE;
    memcpy(value, word, sizeof(*word));
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute name, void *value) {
    SIM_ENTER();
    uint64_t wanted;
    SIM_TRY(check(device, value));
    memcpy(&wanted, value, sizeof(wanted));
    SIM_LOCKED();
    CUmemoryPool pool = pool_of(device);
    bool is_high = name == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || name == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
    if (pool == NULL || !is_high || wanted != 0) return CUDA_ERROR_INVALID_VALUE;
    bool is_used = name == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH;
    *word_of(pool, name) = is_used ? pool->used_bytes : pool->reserved_bytes;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) {
    SIM_ENTER();
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    SIM_LOCKED();
    CUmemoryPool pool = pool_of(device);
    if (pool != NULL) sim_pool_trim_to(pool, 0);
    return CUDA_SUCCESS;
}
