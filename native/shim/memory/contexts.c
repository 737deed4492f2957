/* Contexts cost memory of their own: it is charged before one is made and refunded, with everything made in
 * it, after it ends. A primary context is charged once for each device, however often it is retained. */
#include <time.h>

#include "brief_wait.h"
#include "cancellation.h"
#include "slice/charge.h"
#include "memory/deferred_frees.h"
#include "functions.h"
#include "time/gate.h"
#include "slice/holdings.h"
#include "slice/slice.h"
#include "trace/trace.h"

#define PLACE_LOOK_NS 20000000

static struct pgpu_holding row_of(uint64_t key, const struct pgpu_charge *charge) {
    struct pgpu_holding row = {.key = key,
                               .bytes = charge->bytes,
                               .count = 1,
                               .kind = PGPU_KIND_CONTEXT,
                               .gpu = (int8_t)charge->gpu};
    return row;
}

/* A job of higher priority has taken this job's place. The host suspends the job first and reads its charges
 * afterwards, so it sees a charge that was made before this check. A call that gets no context in any case
 * does not wait. */
static bool is_kept_out(int gpu) {
    if (gpu == PGPU_NO_GPU || !pgpu_meter_is_claimed(&pgpu_slice_meter)) return false;
    uint64_t word = __atomic_load_n(&pgpu_slice_limit()->gpu[gpu].compute, __ATOMIC_SEQ_CST);
    return (word & PGPU_COMPUTE_SUSPENDED) != 0;
}

/* The thread holds no memory, lock or count here, so it may be cancelled. */
static void wait_for_place(int gpu) {
    struct timespec pause = {.tv_nsec = PLACE_LOOK_NS};
    while (is_kept_out(gpu))
        nanosleep(&pause, NULL);
}

/* False: the job was suspended meanwhile, and nothing is charged. */
static bool has_begun(struct pgpu_charge *charge, int gpu, CUresult *result) {
    *result = pgpu_charge_begin(charge, gpu, pgpu_slice_context_bytes(gpu));
    if (*result != CUDA_SUCCESS || !is_kept_out(gpu)) return true;
    pgpu_charge_refund(gpu, charge->bytes);
    return false;
}

/* A process with a context is taken off the GPU while its job is suspended; a process without one gets none
 * then. */
static CUresult begin(struct pgpu_charge *charge, CUdevice ordinal) {
    int gpu = pgpu_slice_gpu_of(ordinal);
    CUresult result;
    do
        wait_for_place(gpu);
    while (!has_begun(charge, gpu, &result));
    return result;
}

/* The driver refuses an ordinal that does not exist, before the lease is checked. */
static bool is_foreign(CUdevice ordinal) {
    return ordinal < 0 || ordinal >= pgpu_slice_device_count();
}

static void note(const struct pgpu_charge *charge, CUcontext context) {
    struct pgpu_holding row = row_of((uint64_t)context, charge);
    pgpu_holdings_put(&row);
}

/* Everything that the driver frees with a context. */
static void refund_all_of(uint64_t context) {
    uint64_t bytes[PGPU_MAX_GPUS] = {0};
    pgpu_holdings_take_owned(PGPU_KIND_MEMORY, context, bytes);
    pgpu_holdings_take_owned(PGPU_KIND_ARRAY, context, bytes);
    pgpu_holdings_take_owned(PGPU_KIND_EXTERNAL, context, bytes);
    pgpu_holdings_take_owned(PGPU_KIND_DEFERRED_FREE, context, bytes);
    pgpu_holdings_take_owned(PGPU_KIND_LIMIT, context, bytes);
    pgpu_holdings_take_owned(PGPU_KIND_MODULE, context, bytes);
    for (int gpu = 0; gpu < (int)PGPU_MAX_GPUS; gpu++)
        pgpu_charge_refund(gpu, bytes[gpu]);
}

/* A primary context that only green contexts retained has no handle in the table; an allocation without a
 * context belongs to a pool. */
static void refund(const struct pgpu_holding *row, uint64_t context) {
    if (context != 0) refund_all_of(context);
    pgpu_charge_refund(row->gpu, row->bytes);
}

/* The versions of cuCtxCreate differ in what lies between the context and the device. */
#define CREATE(ordinal, context, call)                                                                       \
    struct pgpu_charge charge;                                                                               \
    if (is_foreign(ordinal)) return call;                                                                    \
    CUresult result = begin(&charge, ordinal);                                                               \
    if (result != CUDA_SUCCESS) return result;                                                               \
    pgpu_slice_begin_context();                                                                              \
    do                                                                                                       \
        result = call;                                                                                       \
    while (pgpu_charge_should_retry(&charge, result));                                                       \
    if (result == CUDA_SUCCESS) note(&charge, *(context));                                                   \
    return result

PGPU_EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice ordinal) {
    CREATE(ordinal, context, PGPU_REAL(cuCtxCreate)(context, flags, ordinal));
}

PGPU_EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice ordinal) {
    CREATE(ordinal, context, PGPU_REAL(cuCtxCreate_v2)(context, flags, ordinal));
}

PGPU_EXPORT CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int affinity_count,
                                    unsigned int flags, CUdevice ordinal) {
    CREATE(ordinal, context, PGPU_REAL(cuCtxCreate_v3)(context, affinity, affinity_count, flags, ordinal));
}

PGPU_EXPORT CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned int flags,
                                    CUdevice ordinal) {
    CREATE(ordinal, context, PGPU_REAL(cuCtxCreate_v4)(context, parameters, flags, ordinal));
}

PGPU_EXPORT CUresult cuGLCtxCreate(CUcontext *context, unsigned int flags, CUdevice ordinal) {
    CREATE(ordinal, context, PGPU_REAL(cuGLCtxCreate)(context, flags, ordinal));
}

PGPU_EXPORT CUresult cuGLCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice ordinal) {
    CREATE(ordinal, context, PGPU_REAL(cuGLCtxCreate_v2)(context, flags, ordinal));
}

PGPU_EXPORT CUresult cuVDPAUCtxCreate(CUcontext *context, unsigned int flags, CUdevice ordinal,
                                      VdpDevice vdpau, VdpGetProcAddress *find_primary) {
    CREATE(ordinal, context, PGPU_REAL(cuVDPAUCtxCreate)(context, flags, ordinal, vdpau, find_primary));
}

PGPU_EXPORT CUresult cuVDPAUCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice ordinal,
                                         VdpDevice vdpau, VdpGetProcAddress *find_primary) {
    CREATE(ordinal, context, PGPU_REAL(cuVDPAUCtxCreate_v2)(context, flags, ordinal, vdpau, find_primary));
}

static void begin_end(CUcontext context) {
    pgpu_gate_end_context(context);
    pgpu_trace_end_context(context);
    pgpu_deferred_frees_pause((uint64_t)context);
}

/* The row goes before the driver may give the handle to another thread's context. */
static bool begin_destroy(CUcontext context, struct pgpu_holding *row) {
    begin_end(context);
    return pgpu_holdings_take(PGPU_KIND_CONTEXT, (uint64_t)context, row);
}

static CUresult finish_destroy(bool is_known, CUcontext context, const struct pgpu_holding *row,
                               CUresult result) {
    if (is_known && result == CUDA_SUCCESS) refund(row, row->key);
    if (is_known && result != CUDA_SUCCESS) pgpu_holdings_put(row);
    if (result != CUDA_SUCCESS) pgpu_deferred_frees_resume((uint64_t)context);
    return result;
}

PGPU_EXPORT CUresult cuCtxDestroy_v2(CUcontext context) {
    struct pgpu_holding row;
    bool is_known = begin_destroy(context, &row);
    return finish_destroy(is_known, context, &row, PGPU_REAL(cuCtxDestroy_v2)(context));
}

PGPU_EXPORT CUresult cuCtxDestroy(CUcontext context) {
    struct pgpu_holding row;
    bool is_known = begin_destroy(context, &row);
    return finish_destroy(is_known, context, &row, PGPU_REAL(cuCtxDestroy)(context));
}

PGPU_EXPORT CUresult cuCtxAttach(CUcontext *context, unsigned int flags) {
    CUresult result = PGPU_REAL(cuCtxAttach)(context, flags);
    if (result == CUDA_SUCCESS) pgpu_holdings_count(PGPU_KIND_CONTEXT, (uint64_t)*context, +1, NULL);
    return result;
}

/* Calls of this process that are releasing a context, counted from before the driver call until after it. */
static unsigned releasing;

/* Whether a context may be gone afterwards, if all releases in progress succeed. Work in flight in a context
 * that lives on is still measured. */
static bool begin_release(uint64_t key, struct pgpu_holding *row) {
    int64_t under_way = (int64_t)__atomic_add_fetch(&releasing, 1, __ATOMIC_SEQ_CST);
    return pgpu_holdings_find(PGPU_KIND_CONTEXT, key, row) && (int64_t)row->count <= under_way;
}

static void finish_release(void) {
    __atomic_fetch_sub(&releasing, 1, __ATOMIC_SEQ_CST);
}

PGPU_EXPORT CUresult cuCtxDetach(CUcontext context) {
    struct pgpu_holding row;
    if (begin_release((uint64_t)context, &row)) begin_end(context);
    CUresult result = PGPU_REAL(cuCtxDetach)(context);
    if (result == CUDA_SUCCESS && pgpu_holdings_count(PGPU_KIND_CONTEXT, (uint64_t)context, -1, &row) == 0)
        refund(&row, (uint64_t)context);
    else
        pgpu_deferred_frees_resume((uint64_t)context);
    finish_release();
    return result;
}

/* The row of a primary context has the ordinal as its key (no context has so low an address) and, once the
 * driver returned it, its handle. */
static void note_primary(const struct pgpu_charge *charge, CUdevice ordinal) {
    struct pgpu_holding row = row_of((uint64_t)ordinal, charge);
    /* Another thread was first: one context, one charge. */
    if (!pgpu_holdings_join(&row)) pgpu_charge_refund(charge->gpu, charge->bytes);
}

static void release_primary(CUdevice ordinal) {
    struct pgpu_holding row;
    if (pgpu_holdings_count(PGPU_KIND_CONTEXT, (uint64_t)ordinal, -1, &row) == 0) refund(&row, row.primary);
}

static bool is_retained_already(CUdevice ordinal) {
    return pgpu_holdings_count(PGPU_KIND_CONTEXT, (uint64_t)ordinal, +1, NULL) > 0;
}

static void set_handle(struct pgpu_holding *row, void *context) {
    row->primary = (uint64_t)context;
}

/* Threads of this process between charging a primary context and adding its row. */
static unsigned charging;

static bool has_charged_primary(struct pgpu_charge *charge, CUdevice ordinal, CUresult *result) {
    int before = pgpu_cancellation_defer();
    __atomic_fetch_add(&charging, 1, __ATOMIC_SEQ_CST);
    bool has_place = has_begun(charge, charge->gpu, result);
    if (has_place && *result == CUDA_SUCCESS) note_primary(charge, ordinal);
    __atomic_fetch_sub(&charging, 1, __ATOMIC_SEQ_CST);
    pgpu_cancellation_restore(before);
    return has_place;
}

/* A thread that waits for its job's place is not counted among those that other threads wait for. */
static CUresult charge_primary(CUdevice ordinal, struct pgpu_charge *charge) {
    CUresult result;
    do
        wait_for_place(charge->gpu);
    while (!has_charged_primary(charge, ordinal, &result));
    return result;
}

/* Threads that start together share one context: after a refused charge a thread checks whether another
 * thread's charge was the reason. A forked child gets "not initialised" and no refusal, so it never waits for
 * a thread that does not exist in it. */
static CUresult join_primary(CUdevice ordinal, struct pgpu_charge *charge) {
    *charge = (struct pgpu_charge){.gpu = pgpu_slice_gpu_of(ordinal)};
    if (is_retained_already(ordinal)) return CUDA_SUCCESS;
    pgpu_slice_begin_context();
    CUresult result = charge_primary(ordinal, charge);
    charge->bytes = 0; /* from here on the charge belongs to the row, and its last release refunds it */
    if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
    unsigned looks = 0;
    while (__atomic_load_n(&charging, __ATOMIC_SEQ_CST) != 0)
        pgpu_wait_briefly(&looks);
    return is_retained_already(ordinal) ? CUDA_SUCCESS : result;
}

PGPU_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal) {
    struct pgpu_charge charge;
    if (is_foreign(ordinal)) return PGPU_REAL(cuDevicePrimaryCtxRetain)(context, ordinal);
    CUresult result = join_primary(ordinal, &charge);
    if (result != CUDA_SUCCESS) return result;
    do
        result = PGPU_REAL(cuDevicePrimaryCtxRetain)(context, ordinal);
    while (pgpu_charge_should_retry(&charge, result));
    if (result == CUDA_SUCCESS)
        pgpu_holdings_edit(PGPU_KIND_CONTEXT, (uint64_t)ordinal, set_handle, *context);
    else
        release_primary(ordinal);
    return result;
}

/* The primary context's handle, or 0. */
static uint64_t begin_reset(CUdevice ordinal) {
    struct pgpu_holding row;
    if (!pgpu_holdings_find(PGPU_KIND_CONTEXT, (uint64_t)ordinal, &row)) return 0;
    begin_end((CUcontext)row.primary);
    return row.primary;
}

static CUresult release_with(CUdevice ordinal, CUresult (*release)(CUdevice)) {
    struct pgpu_holding row = {0};
    if (begin_release((uint64_t)ordinal, &row)) begin_end((CUcontext)row.primary);
    CUresult result = release(ordinal);
    if (result == CUDA_SUCCESS) release_primary(ordinal);
    pgpu_deferred_frees_resume(row.primary);
    finish_release();
    return result;
}

PGPU_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
    return release_with(ordinal, PGPU_REAL(cuDevicePrimaryCtxRelease_v2));
}

PGPU_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal) {
    return release_with(ordinal, PGPU_REAL(cuDevicePrimaryCtxRelease));
}

/* A reset destroys allocations and releases no reference: the context stays counted until its last release,
 * since the next call that uses it finds it again. */
static CUresult finish_reset(uint64_t context, CUresult result) {
    if (result == CUDA_SUCCESS && context != 0) refund_all_of(context);
    pgpu_deferred_frees_resume(context);
    return result;
}

PGPU_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
    uint64_t context = begin_reset(ordinal);
    return finish_reset(context, PGPU_REAL(cuDevicePrimaryCtxReset_v2)(ordinal));
}

PGPU_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice ordinal) {
    uint64_t context = begin_reset(ordinal);
    return finish_reset(context, PGPU_REAL(cuDevicePrimaryCtxReset)(ordinal));
}

/* A green context lives in its device's primary one and retains it. Its own row remembers which. */
static void note_green(const struct pgpu_charge *charge, CUgreenCtx green, CUdevice ordinal) {
    struct pgpu_holding row = {.key = (uint64_t)green,
                               .ordinal = ordinal,
                               .count = 1,
                               .kind = PGPU_KIND_CONTEXT,
                               .gpu = (int8_t)pgpu_slice_gpu_of(ordinal)};
    if (charge != NULL) note_primary(charge, ordinal);
    pgpu_holdings_put(&row);
}

PGPU_EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc description, CUdevice ordinal,
                                      unsigned int flags) {
    struct pgpu_charge charge;
    bool is_charged = !is_foreign(ordinal) && !is_retained_already(ordinal);
    CUresult result = is_charged ? begin(&charge, ordinal) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) return result;
    pgpu_slice_begin_context();
    do
        result = PGPU_REAL(cuGreenCtxCreate)(green, description, ordinal, flags);
    while (is_charged && pgpu_charge_should_retry(&charge, result));
    if (result == CUDA_SUCCESS)
        note_green(is_charged ? &charge : NULL, *green, ordinal);
    else if (!is_charged)
        release_primary(ordinal);
    return result;
}

PGPU_EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green) {
    struct pgpu_holding row;
    bool is_known = pgpu_holdings_take(PGPU_KIND_CONTEXT, (uint64_t)green, &row);
    CUresult result = PGPU_REAL(cuGreenCtxDestroy)(green);
    if (is_known && result == CUDA_SUCCESS) release_primary(row.ordinal);
    if (is_known && result != CUDA_SUCCESS) pgpu_holdings_put(&row);
    return result;
}
