#include "trace/trace.h"

#include "clock.h"
#include "functions.h"
#include "trace/trace_events.h"
#include "trace/trace_shapes.h"

#define SETTLE_EACH 16u

void pgpu_trace_after_fork(void) {
    if (!pgpu_trace_is_on()) return;
    pgpu_trace_stop();
    pgpu_trace_forget_events();
}

static bool is_capturing(const struct pgpu_trace_command *command) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = command->is_per_thread ? PGPU_REAL(cuStreamIsCapturing_ptsz)(command->stream, &status)
                                             : PGPU_REAL(cuStreamIsCapturing)(command->stream, &status);
    return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Before Volta there is no carve-out, and a preference between L1 and shared memory instead. */
static bool carve(CUfunction function) {
    uint64_t wanted = pgpu_slice_limit()->carve_out;
    if (wanted == 0 || wanted > 101) return false;
    int percent = (int)wanted - 1;
    CUfunc_cache preference = percent == 0 ? CU_FUNC_CACHE_PREFER_L1 : CU_FUNC_CACHE_PREFER_SHARED;
    PGPU_REAL(cuFuncSetCacheConfig)(function, preference);
    CUresult result =
        PGPU_REAL(cuFuncSetAttribute)(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, percent);
    return result == CUDA_SUCCESS;
}

static void spent(struct pgpu_trace *log, uint64_t since_ns) {
    pgpu_trace_count(&log->self_ns, pgpu_now_ns() - since_ns);
}

void pgpu_trace_begin(const struct pgpu_trace_command *command, struct pgpu_trace_span *span) {
    *span = (struct pgpu_trace_span){0};
    if (!pgpu_trace_is_on() || !pgpu_meter_is_claimed(&pgpu_slice_meter)) return;
    if (command->place.gpu == PGPU_NO_GPU || is_capturing(command)) return;
    span->is_open = true;
    span->at_ns = pgpu_now_ns();
    if (command->kind == PGPU_TRACE_KERNEL) {
        span->flags = carve(command->function) ? PGPU_TRACE_CARVED : 0;
        span->shape = pgpu_trace_shape_of(command);
    }
    span->pair = pgpu_trace_pair_open(command);
    spent(pgpu_trace_log(), span->at_ns);
}

static struct pgpu_trace_record record_of(const struct pgpu_trace_command *command,
                                          const struct pgpu_trace_span *span) {
    return (struct pgpu_trace_record){.kind = command->kind,
                                      .gpu = (uint8_t)command->place.gpu,
                                      .flags = span->flags,
                                      .shape = span->shape,
                                      .detail = command->detail,
                                      .at_ns = span->at_ns,
                                      .stream = (uint64_t)command->stream,
                                      .bytes = command->bytes,
                                      .context = (uint64_t)command->place.context};
}

void pgpu_trace_end(const struct pgpu_trace_command *command, struct pgpu_trace_span *span, CUresult result) {
    if (!span->is_open) return;
    uint64_t since_ns = pgpu_now_ns();
    struct pgpu_trace *log = pgpu_trace_log();
    if (log == NULL) return;
    if (result != CUDA_SUCCESS) {
        if (span->pair != NULL) pgpu_trace_pair_drop(span->pair);
        return;
    }
    struct pgpu_trace_record record = record_of(command, span);
    struct pgpu_trace_record *row = pgpu_trace_write(&record);
    if (span->shape != 0) pgpu_trace_count(&log->shape[span->shape - 1].launches, 1);
    if (span->pair == NULL)
        pgpu_trace_count(&log->unmeasured, 1);
    else
        pgpu_trace_pair_close(span->pair, command, row, span->shape);
    uint64_t calls = __atomic_fetch_add(&log->self_calls, 1, __ATOMIC_RELAXED);
    spent(log, since_ns);
    /* Most copies have waited for earlier work, and a program may never synchronise otherwise. */
    if (command->kind == PGPU_TRACE_COPY || calls % SETTLE_EACH == 0) pgpu_trace_settle();
}
