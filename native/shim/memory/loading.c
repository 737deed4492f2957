#include "memory/loading.h"

#include "functions.h"
#include "memory/deferred_frees.h"
#include "memory/paging.h"
#include "memory/pools.h"
#include "slice/charge.h"
#include "slice/holdings.h"
#include "slice/process_memory.h"

/* A smaller difference of the device's free memory is code, or noise. */
#define LARGE_BYTES (64ull * 1024 * 1024)

static bool is_barred[PGPU_MAX_GPUS];

/* Of each GPU, the device's free memory and the job's charges at the last measurement. */
static uint64_t explained_bytes[PGPU_MAX_GPUS];

static bool read_bytes(struct pgpu_loading *loading) {
    size_t free = 0, total = 0;
    if (PGPU_REAL(cuMemGetInfo_v2)(&free, &total) != CUDA_SUCCESS) return false;
    loading->free_bytes = free;
    loading->slice_bytes = pgpu_meter_total_bytes(&pgpu_slice_meter, (unsigned)loading->place.gpu);
    return true;
}

static void read_process(struct pgpu_loading *loading) {
    loading->own_bytes = pgpu_meter_own_bytes(&pgpu_slice_meter, (unsigned)loading->place.gpu);
    loading->has_process_bytes = pgpu_process_memory_read(loading->place.gpu, &loading->process_bytes);
}

/* The process has or had managed memory, or memory that it shares with others. */
static bool charges_more_than_it_holds(void) {
    return __atomic_load_n(&pgpu_slice_meter.usage->slot[pgpu_slice_meter.slot].stays, __ATOMIC_RELAXED) != 0;
}

/* Where the job oversubscribes, loading evicts other memory. */
struct pgpu_loading pgpu_loading_begin(void) {
    struct pgpu_loading before = {.place = {.gpu = PGPU_NO_GPU}};
    if (pgpu_paging_is_on() || !pgpu_meter_is_claimed(&pgpu_slice_meter)) return before;
    if (pgpu_slice_current(&before.place) != CUDA_SUCCESS) before.place.gpu = PGPU_NO_GPU;
    if (before.place.gpu != PGPU_NO_GPU && !read_bytes(&before)) before.place.gpu = PGPU_NO_GPU;
    if (before.place.gpu != PGPU_NO_GPU && charges_more_than_it_holds()) read_process(&before);
    return before;
}

static uint64_t more(int64_t held_bytes, int64_t charged_bytes) {
    return held_bytes > charged_bytes ? (uint64_t)(held_bytes - charged_bytes) : 0;
}

/* What the process has taken and not charged, where only a difference is known. */
static void read_difference(const struct pgpu_loading *before, struct pgpu_loading *now,
                            struct pgpu_loaded *loaded) {
    loaded->is_proven = false;
    if (before->has_process_bytes) read_process(now);
    if (now->has_process_bytes)
        loaded->since_begin = more((int64_t)(now->process_bytes - before->process_bytes),
                                   (int64_t)(now->own_bytes - before->own_bytes));
    bool is_enough = now->has_process_bytes || loaded->since_begin >= LARGE_BYTES;
    loaded->bytes = is_enough ? loaded->since_begin : 0;
}

struct pgpu_loaded pgpu_loading_end(const struct pgpu_loading *before) {
    struct pgpu_loaded loaded = {.is_proven = true};
    struct pgpu_loading now = {.place = before->place};
    if (now.place.gpu == PGPU_NO_GPU || !read_bytes(&now)) return loaded;
    uint64_t *explained = &explained_bytes[now.place.gpu], sum_bytes = now.free_bytes + now.slice_bytes;
    if (sum_bytes == __atomic_load_n(explained, __ATOMIC_RELAXED)) return loaded;
    loaded.since_begin = more((int64_t)(before->free_bytes - now.free_bytes),
                              (int64_t)(now.slice_bytes - before->slice_bytes));
    pgpu_deferred_frees_settle();
    pgpu_pools_settle_all();
    bool is_known = pgpu_process_memory_uncharged(now.place.gpu, &loaded.bytes);
    if (!is_known || (loaded.bytes == 0 && before->has_process_bytes))
        read_difference(before, &now, &loaded);
    else /* it is going to be charged, or released */
        __atomic_store_n(explained, sum_bytes + loaded.bytes, __ATOMIC_RELAXED);
    return loaded;
}

bool pgpu_loading_is_barred(const struct pgpu_place *place) {
    if (place->gpu == PGPU_NO_GPU || !__atomic_load_n(&is_barred[place->gpu], __ATOMIC_RELAXED)) return false;
    uint64_t slice_bytes = pgpu_meter_total_bytes(&pgpu_slice_meter, (unsigned)place->gpu);
    if (slice_bytes > pgpu_limit_bytes(pgpu_slice_limit(), (unsigned)place->gpu)) return true;
    __atomic_store_n(&is_barred[place->gpu], false, __ATOMIC_RELAXED);
    return false;
}

CUresult pgpu_loading_charge(const struct pgpu_loading *before, uint64_t handle, uint64_t bytes) {
    struct pgpu_charge charge;
    CUresult result = pgpu_charge_begin(&charge, before->place.gpu, bytes);
    if (result != CUDA_SUCCESS) {
        pgpu_charge_regardless(before->place.gpu, bytes);
        __atomic_store_n(&is_barred[before->place.gpu], true, __ATOMIC_RELAXED);
    }
    pgpu_loading_note(before, handle, bytes, true);
    return result;
}

static void add(struct pgpu_holding *row, void *bytes) {
    row->bytes += *(uint64_t *)bytes;
}

/* Handles are even. */
void pgpu_loading_note(const struct pgpu_loading *before, uint64_t handle, uint64_t bytes, bool is_use) {
    struct pgpu_holding row = {.key = (handle ^ ((uint64_t)before->place.context << 20)) | is_use,
                               .bytes = bytes,
                               .context = (uint64_t)before->place.context,
                               .module = handle,
                               .count = 1,
                               .kind = PGPU_KIND_MODULE,
                               .gpu = (int8_t)before->place.gpu};
    if (!is_use || !pgpu_holdings_edit(PGPU_KIND_MODULE, row.key, add, &bytes)) pgpu_holdings_put(&row);
}
