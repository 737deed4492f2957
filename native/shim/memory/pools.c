#include "memory/pools.h"

#include "brief_wait.h"
#include "cancellation.h"
#include "functions.h"
#include "memory/paging.h"
#include "memory/vmm.h"
#include "slice/slice.h"

#define BLOCK_BYTES (2ull * 1024 * 1024)
/* `pool_state` of the row of a pool that was destroyed while something of it was still in use. */
#define DESTROYED 1u

/* Whether some pool may hold less than is charged for it; most processes never set it. */
static bool has_slack;

/* Memory that prefers no device is charged to that of the current context, or to the first of the lease. */
static int gpu_of_managed(const CUmemLocation *location) {
    struct pgpu_place place;
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) return pgpu_slice_gpu_of(location->id);
    return pgpu_slice_current(&place) == CUDA_SUCCESS ? place.gpu : 0;
}

int pgpu_pools_gpu_of(CUmemAllocationType type, const CUmemLocation *location, bool *is_charged) {
    bool is_managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    *is_charged = is_managed || pgpu_vmm_is_charged(location);
    if (!*is_charged) return PGPU_NO_GPU;
    if (!is_managed) return pgpu_slice_gpu_of(pgpu_vmm_ordinal_of(location));
    pgpu_slice_forbid_checkpoint();
    int gpu = gpu_of_managed(location);
    return gpu != PGPU_NO_GPU && pgpu_paging_is_on() ? PGPU_AS_PAGEABLE(gpu) : gpu;
}

static bool is_graph_pool(uint64_t pool) {
    return pool <= (uint64_t)pgpu_slice_device_count();
}

static uint64_t blocks(uint64_t bytes) {
    return (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
}

static void begin_query(struct pgpu_holding *pool, void *context) {
    *(bool *)context = pool->pool_state != DESTROYED;
    if (*(bool *)context) pool->count++;
}

/* The thread that destroys the pool waits until no other thread uses the row. */
static bool try_begin_query(uint64_t pool) {
    bool is_alive = false;
    pgpu_holdings_edit(PGPU_KIND_POOL, pool, begin_query, &is_alive);
    return is_alive;
}

static void end_query(uint64_t pool) {
    pgpu_holdings_count(PGPU_KIND_POOL, pool, -1, NULL);
}

static bool query_pool(uint64_t pool, uint64_t *reserved_bytes) {
    if (!try_begin_query(pool)) return false;
    int before = pgpu_cancellation_defer();
    CUresult result = PGPU_REAL(cuMemPoolGetAttribute)((CUmemoryPool)pool,
                                                       CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, reserved_bytes);
    end_query(pool);
    pgpu_cancellation_restore(before);
    return result == CUDA_SUCCESS;
}

/* False: the driver does not report it, and the charge stays as it is. */
static bool query_reserved(uint64_t pool, uint64_t *reserved_bytes) {
    if (!is_graph_pool(pool)) return query_pool(pool, reserved_bytes);
    return PGPU_REAL(cuDeviceGetGraphMemAttribute)(
               (CUdevice)(pool - 1), CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, reserved_bytes) == CUDA_SUCCESS;
}

struct change {
    uint64_t bytes;      /* requested, or reported by the driver */
    uint64_t difference; /* to reserve or refund */
    int gpu;
    bool is_over;
};

static void hand_out(struct pgpu_holding *pool, void *context) {
    struct change *change = context;
    pool->handed_out_bytes += change->bytes;
    if (pool->handed_out_bytes <= pool->bytes) return;
    change->difference = blocks(pool->handed_out_bytes) - pool->bytes;
    pool->bytes += change->difference;
}

static void undo_hand_out(struct pgpu_holding *pool, void *context) {
    struct change *change = context;
    pool->handed_out_bytes -= change->bytes;
    pool->bytes -= change->difference;
}

static void ensure_row(uint64_t pool, int gpu) {
    struct pgpu_holding row = {.key = pool, .count = 1, .kind = PGPU_KIND_POOL, .gpu = (int8_t)gpu};
    struct pgpu_holding found;
    if (pgpu_holdings_find(PGPU_KIND_POOL, pool, &found)) return;
    /* The row of another thread that was faster keeps its charge. */
    if (!pgpu_holdings_join(&row)) pgpu_holdings_count(PGPU_KIND_POOL, pool, -1, NULL);
}

CUresult pgpu_pools_take(uint64_t pool, int gpu, uint64_t bytes, struct pgpu_charge *charge) {
    struct change change = {.bytes = bytes};
    /* No row is made for it: a row without a GPU is a host pool's, which is never charged. */
    if (gpu == PGPU_NO_GPU) return CUDA_ERROR_NOT_PERMITTED;
    ensure_row(pool, gpu);
    /* Without a row nothing could be charged. */
    if (!pgpu_holdings_edit(PGPU_KIND_POOL, pool, hand_out, &change)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = pgpu_charge_begin(charge, gpu, change.difference);
    if (result != CUDA_SUCCESS) pgpu_holdings_edit(PGPU_KIND_POOL, pool, undo_hand_out, &change);
    return result;
}

static void raise_to_reserved(struct pgpu_holding *pool, void *context) {
    struct change *change = context;
    if (change->bytes <= pool->bytes) return;
    change->difference = change->bytes - pool->bytes;
    pool->bytes = change->bytes;
}

static void undo_raise(struct pgpu_holding *pool, void *context) {
    pool->bytes -= ((struct change *)context)->difference;
}

CUresult pgpu_pools_confirm(uint64_t pool, int gpu) {
    struct pgpu_charge charge = {.gpu = gpu};
    struct change change = {0};
    if (!query_reserved(pool, &change.bytes)) return CUDA_SUCCESS;
    ensure_row(pool, gpu);
    pgpu_holdings_edit(PGPU_KIND_POOL, pool, raise_to_reserved, &change);
    if (change.difference == 0) return CUDA_SUCCESS;
    CUresult result = pgpu_charge_more(&charge, change.difference);
    if (result != CUDA_SUCCESS) pgpu_holdings_edit(PGPU_KIND_POOL, pool, undo_raise, &change);
    return result;
}

static void hand_back(struct pgpu_holding *pool, void *context) {
    struct change *change = context;
    pool->handed_out_bytes -= change->bytes < pool->handed_out_bytes ? change->bytes : pool->handed_out_bytes;
    change->is_over = pool->pool_state == DESTROYED;
}

void pgpu_pools_give(uint64_t pool, uint64_t bytes) {
    struct change change = {.bytes = bytes};
    pgpu_holdings_edit(PGPU_KIND_POOL, pool, hand_back, &change);
    if (change.is_over)
        pgpu_pools_settle_one(pool);
    else
        __atomic_store_n(&has_slack, true, __ATOMIC_RELAXED);
}

void pgpu_pools_freed(const struct pgpu_holding *row) {
    pgpu_pools_give(row->pool, row->bytes);
}

static void lower_to_reserved(struct pgpu_holding *pool, void *context) {
    struct change *change = context;
    uint64_t kept_bytes = blocks(pool->handed_out_bytes);
    if (pool->pool_state != DESTROYED && change->bytes > kept_bytes) kept_bytes = change->bytes;
    change->gpu = pool->gpu;
    change->is_over = pool->pool_state == DESTROYED && pool->handed_out_bytes == 0;
    if (kept_bytes >= pool->bytes) return;
    change->difference = pool->bytes - kept_bytes;
    pool->bytes = kept_bytes;
}

/* Changes under the table's mutex alone. */
static uint64_t graph_round = 1;

struct pgpu_graph_pool pgpu_pools_read_graph(uint64_t pool, int gpu) {
    struct pgpu_holding row = {0};
    struct pgpu_graph_pool state = {.round = __atomic_load_n(&graph_round, __ATOMIC_ACQUIRE)};
    ensure_row(pool, gpu);
    pgpu_holdings_find(PGPU_KIND_POOL, pool, &row);
    state.charged_bytes = row.bytes;
    state.bound_bytes = row.handed_out_bytes;
    state.launches = row.pool_state;
    return state;
}

struct graph_change {
    struct pgpu_graph_pool seen;
    uint64_t added_bytes, charged_bytes, reserved_bytes;
    uint32_t own; /* launches and queries of the caller in `count` */
    int64_t difference;
    bool is_made;
};

static void begin_graph(struct pgpu_holding *pool, void *context) {
    struct graph_change *change = context;
    const struct pgpu_graph_pool *seen = &change->seen;
    change->is_made = seen->round == graph_round && seen->charged_bytes == pool->bytes &&
                      seen->bound_bytes == pool->handed_out_bytes;
    if (!change->is_made) return;
    pool->handed_out_bytes += change->added_bytes;
    pool->bytes += change->charged_bytes;
    pool->pool_state += 2;
    pool->count++;
}

bool pgpu_pools_begin_graph(uint64_t pool, const struct pgpu_graph_pool *seen, uint64_t added_bytes,
                            uint64_t charged_bytes) {
    struct graph_change change = {.seen = *seen, .added_bytes = added_bytes, .charged_bytes = charged_bytes};
    pgpu_holdings_edit(PGPU_KIND_POOL, pool, begin_graph, &change);
    __atomic_store_n(&has_slack, true, __ATOMIC_RELAXED);
    return change.is_made;
}

/* The driver's answer is older than a launch that began meanwhile; then the charge is only raised. */
static void set_reserved(struct pgpu_holding *pool, void *context) {
    struct graph_change *change = context;
    bool is_certain = pool->count == 1 + change->own && pool->pool_state == change->seen.launches;
    pool->count -= change->own;
    pool->handed_out_bytes -= change->added_bytes;
    /* A driver that reports nothing after a launch may yet take it. */
    bool is_early = change->own != 0 && change->added_bytes == 0 && change->reserved_bytes == 0;
    if (change->reserved_bytes < pool->bytes && (!is_certain || is_early)) return;
    change->difference = (int64_t)(change->reserved_bytes - pool->bytes);
    pool->bytes = change->reserved_bytes;
    if (change->reserved_bytes != 0 || !is_certain) return;
    pool->handed_out_bytes = 0;
    __atomic_store_n(&graph_round, graph_round + 1, __ATOMIC_RELEASE);
}

/* Returns the bytes refunded. What the driver took beyond all that was foreseen is counted even past the
 * slice. */
static uint64_t settle_graph(uint64_t pool, int gpu, uint64_t added_bytes, uint32_t own) {
    struct graph_change change = {
        .seen = pgpu_pools_read_graph(pool, gpu), .added_bytes = added_bytes, .own = own};
    if (!query_reserved(pool, &change.reserved_bytes)) change.reserved_bytes = change.seen.charged_bytes;
    pgpu_holdings_edit(PGPU_KIND_POOL, pool, set_reserved, &change);
    if (change.difference > 0) {
        struct pgpu_charge charge = {.gpu = gpu};
        if (pgpu_charge_more(&charge, (uint64_t)change.difference) != CUDA_SUCCESS)
            pgpu_charge_regardless(gpu, (uint64_t)change.difference);
        return 0;
    }
    pgpu_charge_refund(gpu, (uint64_t)-change.difference);
    return (uint64_t)-change.difference;
}

void pgpu_pools_end_graph(uint64_t pool, int gpu, uint64_t added_bytes) {
    settle_graph(pool, gpu, added_bytes, 1);
}

/* Returns the bytes refunded. A destroyed pool cannot be queried; its charge becomes what is in use. A pool
 * without a row may have been destroyed and settled by another thread. */
static uint64_t settle(uint64_t pool) {
    struct change change = {0};
    struct pgpu_holding found;
    if (!pgpu_holdings_find(PGPU_KIND_POOL, pool, &found)) return 0;
    if (is_graph_pool(pool)) return settle_graph(pool, found.gpu, 0, 0);
    if (found.pool_state != DESTROYED && !query_reserved(pool, &change.bytes)) return 0;
    if (!pgpu_holdings_edit(PGPU_KIND_POOL, pool, lower_to_reserved, &change)) return 0;
    struct pgpu_holding row;
    if (change.is_over) pgpu_holdings_take(PGPU_KIND_POOL, pool, &row);
    pgpu_charge_refund(change.gpu, change.difference);
    return change.difference;
}

void pgpu_pools_settle_one(uint64_t pool) {
    settle(pool);
}

/* Whether a pool is still charged more than is allocated from it, so that a later synchronisation may refund
 * it. How much graphs use of theirs is not known. */
static bool settle_row(const struct pgpu_holding *row, void *context) {
    uint64_t refunded_bytes = settle(row->key);
    uint64_t used_bytes = is_graph_pool(row->key) ? 0 : blocks(row->handed_out_bytes);
    if (row->bytes - refunded_bytes > used_bytes) *(bool *)context = true;
    return false;
}

void pgpu_pools_settle_all(void) {
    if (!__atomic_load_n(&has_slack, __ATOMIC_RELAXED)) return;
    bool is_slack_left = false;
    int before = pgpu_cancellation_defer();
    __atomic_store_n(&has_slack, false, __ATOMIC_RELAXED);
    pgpu_holdings_visit(PGPU_KIND_POOL, settle_row, &is_slack_left);
    if (is_slack_left) __atomic_store_n(&has_slack, true, __ATOMIC_RELAXED);
    pgpu_cancellation_restore(before);
}

struct trim {
    int gpu;
    bool has_refunded;
};

/* Managed memory of a job that oversubscribes is pageable. */
static bool is_on(const struct pgpu_holding *pool, int gpu) {
    return pool->gpu == gpu || (pgpu_paging_is_on() && pool->gpu == PGPU_AS_PAGEABLE(gpu));
}

static bool trim_row(const struct pgpu_holding *row, void *context) {
    struct trim *trim = context;
    if (!is_on(row, trim->gpu) || !try_begin_query(row->key)) return false;
    if (is_graph_pool(row->key))
        PGPU_REAL(cuDeviceGraphMemTrim)((CUdevice)(row->key - 1));
    else
        PGPU_REAL(cuMemPoolTrimTo)((CUmemoryPool)row->key, 0);
    end_query(row->key);
    if (settle(row->key) != 0) trim->has_refunded = true;
    return false;
}

bool pgpu_pools_trim(int gpu) {
    struct trim trim = {.gpu = gpu};
    if (!__atomic_load_n(&has_slack, __ATOMIC_RELAXED)) return false;
    int before = pgpu_cancellation_defer();
    pgpu_holdings_visit(PGPU_KIND_POOL, trim_row, &trim);
    pgpu_cancellation_restore(before);
    return trim.has_refunded;
}

static void mark_destroyed(struct pgpu_holding *pool, void *unused) {
    (void)unused;
    pool->pool_state = DESTROYED;
}

static void mark_alive(struct pgpu_holding *pool, void *unused) {
    (void)unused;
    pool->pool_state = 0;
}

static bool is_being_queried(uint64_t pool) {
    struct pgpu_holding row;
    return pgpu_holdings_find(PGPU_KIND_POOL, pool, &row) && row.count > 1;
}

/* The row is marked first, so that a thread that synchronises meanwhile does not query a pool that is gone. A
 * query in progress ends soon; a forked child has no such thread and finds no row. */
PGPU_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    bool is_known = pgpu_holdings_edit(PGPU_KIND_POOL, (uint64_t)pool, mark_destroyed, NULL);
    unsigned looks = 0;
    while (is_known && is_being_queried((uint64_t)pool))
        pgpu_wait_briefly(&looks);
    CUresult result = PGPU_REAL(cuMemPoolDestroy)(pool);
    if (is_known && result == CUDA_SUCCESS) settle((uint64_t)pool);
    if (is_known && result != CUDA_SUCCESS)
        pgpu_holdings_edit(PGPU_KIND_POOL, (uint64_t)pool, mark_alive, NULL);
    return result;
}

PGPU_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes) {
    CUresult result = PGPU_REAL(cuMemPoolTrimTo)(pool, keep_bytes);
    if (result == CUDA_SUCCESS) settle((uint64_t)pool);
    return result;
}

PGPU_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    CUresult result = PGPU_REAL(cuMemPoolSetAttribute)(pool, attribute, value);
    if (result == CUDA_SUCCESS) settle((uint64_t)pool);
    return result;
}
