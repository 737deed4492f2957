#include "memory/deferred_frees.h"

#include "brief_wait.h"
#include "cancellation.h"
#include "slice/charge.h"
#include "functions.h"
#include "slice/slice.h"

/* A row has the event as its key and the event's context. `count` is 2 while a thread queries the event, and
 * it is paused once the context may be ending. */

/* Whether there may be rows to settle, and whether there ever were any; most processes have none. */
static bool is_pending, has_rows;

/* Threads between finding a row and the end of their query of its event. */
static unsigned asking;

/* The key of a row without an event; no event has this value. */
static bool has_event(const struct pgpu_holding *row) {
    return (row->key & 1) == 0;
}

static uint64_t key_without_event(void) {
    static uint64_t last = 1;
    return __atomic_fetch_add(&last, 2, __ATOMIC_RELAXED);
}

static CUresult record(CUevent event, CUstream stream, bool is_per_thread) {
    return is_per_thread ? PGPU_REAL(cuEventRecord_ptsz)(event, stream)
                         : PGPU_REAL(cuEventRecord)(event, stream);
}

/* An event belongs to the context that is current when it is made, which must be the stream's. */
static CUresult record_new(CUcontext context, CUstream stream, bool is_per_thread, CUevent *event) {
    CUcontext popped;
    CUresult result = PGPU_REAL(cuCtxPushCurrent_v2)(context);
    if (result != CUDA_SUCCESS) return result;
    result = PGPU_REAL(cuEventCreate)(event, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS && (result = record(*event, stream, is_per_thread)) != CUDA_SUCCESS)
        PGPU_REAL(cuEventDestroy_v2)(*event);
    PGPU_REAL(cuCtxPopCurrent_v2)(&popped);
    return result;
}

/* A capture that any thread has begun must not be disturbed by events of ours. */
static CUstreamCaptureMode exchange_mode(CUstreamCaptureMode mode) {
    PGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return mode;
}

void pgpu_deferred_frees_begin(const struct pgpu_holding *memory, CUstream stream, bool is_per_thread) {
    struct pgpu_place place;
    CUevent event = NULL;
    CUresult result = pgpu_slice_of_stream(stream, is_per_thread, &place);
    CUstreamCaptureMode mode = exchange_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    if (result == CUDA_SUCCESS) result = record_new(place.context, stream, is_per_thread, &event);
    exchange_mode(mode);
    struct pgpu_holding row = {
        .key = result == CUDA_SUCCESS ? (uint64_t)event : key_without_event(),
        .bytes = memory->bytes,
        .context = result == CUDA_SUCCESS ? (uint64_t)place.context : memory->context,
        .count = 1,
        .kind = PGPU_KIND_DEFERRED_FREE,
        .gpu = memory->gpu,
    };
    pgpu_holdings_put(&row);
    __atomic_store_n(&has_rows, true, __ATOMIC_RELEASE);
    __atomic_store_n(&is_pending, true, __ATOMIC_RELEASE);
}

/* One thread at a time queries an event, so that no thread queries one that another has destroyed. */
static void begin_query(struct pgpu_holding *row, void *context) {
    *(bool *)context = row->count == 1 && row->is_paused == 0;
    if (*(bool *)context) row->count = 2;
}

static void end_query(struct pgpu_holding *row, void *unused) {
    (void)unused;
    row->count = 1;
}

/* The driver gives such memory back at a synchronisation; synchronising an event that has passed takes no
 * time. */
static bool is_over(CUevent event) {
    return PGPU_REAL(cuEventQuery)(event) == CUDA_SUCCESS &&
           PGPU_REAL(cuEventSynchronize)(event) == CUDA_SUCCESS;
}

/* The row goes first: the driver may give a new event the same address at once. */
static void finish(uint64_t event) {
    struct pgpu_holding row;
    bool is_known = pgpu_holdings_take(PGPU_KIND_DEFERRED_FREE, event, &row);
    PGPU_REAL(cuEventDestroy_v2)((CUevent)event);
    if (is_known) pgpu_charge_refund(row.gpu, row.bytes);
}

struct sweep {
    bool has_refunded, has_more;
};

static bool settle(uint64_t event) {
    bool try_begin_query = false;
    pgpu_holdings_edit(PGPU_KIND_DEFERRED_FREE, event, begin_query, &try_begin_query);
    if (!try_begin_query) return false;
    if (is_over((CUevent)event)) {
        finish(event);
        return true;
    }
    pgpu_holdings_edit(PGPU_KIND_DEFERRED_FREE, event, end_query, NULL);
    return false;
}

static bool settle_row(const struct pgpu_holding *row, void *context) {
    struct sweep *sweep = context;
    __atomic_fetch_add(&asking, 1, __ATOMIC_SEQ_CST);
    bool is_settled = has_event(row) && settle(row->key);
    __atomic_fetch_sub(&asking, 1, __ATOMIC_SEQ_CST);
    *(is_settled ? &sweep->has_refunded : &sweep->has_more) = true;
    return false;
}

bool pgpu_deferred_frees_settle(void) {
    struct sweep sweep = {.has_refunded = false};
    if (!__atomic_load_n(&is_pending, __ATOMIC_ACQUIRE)) return false;
    __atomic_store_n(&is_pending, false, __ATOMIC_RELEASE);
    int before = pgpu_cancellation_defer();
    CUstreamCaptureMode mode = exchange_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    pgpu_holdings_visit(PGPU_KIND_DEFERRED_FREE, settle_row, &sweep);
    exchange_mode(mode);
    pgpu_cancellation_restore(before);
    if (sweep.has_more) __atomic_store_n(&is_pending, true, __ATOMIC_RELEASE);
    return sweep.has_refunded;
}

static void pause_row(struct pgpu_holding *row, void *unused) {
    (void)unused;
    row->is_paused = 1;
}

static void resume_row(struct pgpu_holding *row, void *unused) {
    (void)unused;
    row->is_paused = 0;
}

/* A query in progress ends soon, since the driver does not block in it. A forked child has no such thread. */
void pgpu_deferred_frees_pause(uint64_t context) {
    if (!__atomic_load_n(&has_rows, __ATOMIC_ACQUIRE)) return;
    pgpu_holdings_edit_owned(PGPU_KIND_DEFERRED_FREE, context, pause_row, NULL);
    unsigned looks = 0;
    while (__atomic_load_n(&asking, __ATOMIC_SEQ_CST) != 0 && pgpu_meter_is_claimed(&pgpu_slice_meter))
        pgpu_wait_briefly(&looks);
}

void pgpu_deferred_frees_resume(uint64_t context) {
    if (!__atomic_load_n(&has_rows, __ATOMIC_ACQUIRE)) return;
    pgpu_holdings_edit_owned(PGPU_KIND_DEFERRED_FREE, context, resume_row, NULL);
}
