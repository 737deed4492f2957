/* Doing work: now, where nothing stands before it. */
#include "stream/work.h"

#include <string.h>

#include "stream/capture.h"
#include "time/clock.h"
#include "launch/kernel.h"
#include "pool/pool.h"
#include "memory/range.h"
#include "managed/residency.h"
#include "stream/shared_event.h"

static uint64_t transfer_ns(uint64_t bytes, uint64_t bytes_per_second) {
    return bytes_per_second == 0 ? 0 : (uint64_t)((double)bytes * 1e9 / (double)bytes_per_second);
}

/* A transfer keeps no multiprocessor busy: it takes of the bus, or of device memory. */
static struct sim_demand copy_demand(const struct sim_gpu *gpu, const struct sim_copy *copy) {
    uint64_t bytes = (uint64_t)copy->width_bytes * copy->height * copy->depth;
    if (copy->crosses_bus)
        return (struct sim_demand){.pcie_ns = (double)transfer_ns(bytes, gpu->pcie_bytes_per_second)};
    /* A copy inside the device reads and writes the same memory. */
    return (struct sim_demand){.dram_bytes = 2 * (double)bytes};
}

static struct sim_demand fill_demand(const struct sim_fill *fill) {
    return (struct sim_demand){.dram_bytes =
                                   (double)fill->width * fill->element_bytes * (double)fill->height};
}

/* Clocks of two devices show different times; what is left until a moment is the same on both. */
static uint64_t on_clock_of(unsigned gpu, unsigned event_gpu, uint64_t at_ns) {
    if (gpu == event_gpu) return at_ns;
    uint64_t now_ns = sim_clock_now(event_gpu);
    return sim_clock_now(gpu) + (at_ns > now_ns ? at_ns - now_ns : 0);
}

/* Where nothing lies behind addresses no work takes time, and so no event waits for a turn either. */
void sim_event_mark(CUevent event, unsigned gpu, uint64_t not_before_ns) {
    const struct sim_clock_work moment = {.needs_turn = sim_driver.has_backing};
    event->at_ns = sim_clock_queue(gpu, not_before_ns, &moment);
    event->is_recorded = true;
}

static void record(CUstream stream, CUevent event, uint64_t recording) {
    sim_event_mark(event, stream->context->gpu, sim_stream_begin_ns(stream));
    sim_stream_extend(stream, event->at_ns);
    if (event->shared != NULL)
        sim_shared_event_record(event->shared, recording, stream->context->gpu, event->at_ns);
}

/* Another process's recording has come when its wait begins. */
static void await(CUstream stream, CUevent event) {
    if (event->shared != NULL) return;
    sim_stream_extend(stream, on_clock_of(stream->context->gpu, event->context->gpu, event->at_ns));
}

static struct sim_demand transfer_demand(const struct sim_gpu *gpu, const struct sim_work *work) {
    if (work->kind == SIM_WORK_COPY) return copy_demand(gpu, &work->copy);
    if (work->kind == SIM_WORK_FILL) return fill_demand(&work->fill);
    return (struct sim_demand){.pcie_ns = (double)transfer_ns(work->moved_bytes, gpu->pcie_bytes_per_second)};
}

static struct sim_kernel_demand demand_of(CUstream stream, const struct sim_gpu *gpu,
                                          const struct sim_work *work) {
    if (work->kind == SIM_WORK_KERNEL)
        return sim_kernel_demand(gpu, &work->kernel, stream->context->cache,
                                 sim_residency_total(stream->context->gpu));
    struct sim_kernel_demand transfer = {.demand = transfer_demand(gpu, work)};
    struct sim_conditions alone = sim_conditions_alone(gpu, &transfer.demand);
    transfer.cost_ns = (uint64_t)sim_demand_ns(gpu, &transfer.demand, &alone);
    return transfer;
}

static bool takes_time(enum sim_work_kind kind) {
    return kind == SIM_WORK_KERNEL || kind == SIM_WORK_COPY || kind == SIM_WORK_FILL || kind == SIM_WORK_MOVE;
}

static void queue(CUstream stream, const struct sim_work *work) {
    if (!takes_time(work->kind)) return;
    unsigned gpu = stream->context->gpu;
    struct sim_kernel_demand wanted = demand_of(stream, &sim_driver.config.gpu[gpu], work);
    struct sim_clock_work timed = {.cost_ns = wanted.cost_ns,
                                   .block_ns = wanted.block_ns,
                                   .fills_gpu = wanted.fills_gpu,
                                   .demand = &wanted.demand};
    sim_stream_extend(stream, sim_clock_queue(gpu, sim_stream_begin_ns(stream), &timed));
}

void sim_charge_time(CUstream stream, const struct sim_work *work) {
    bool names_event = work->kind == SIM_WORK_RECORD || work->kind == SIM_WORK_AWAIT;
    if (names_event && !sim_is_live(&sim_events, work->event)) return;
    if (work->kind == SIM_WORK_RECORD)
        record(stream, work->event, work->recording);
    else if (work->kind == SIM_WORK_AWAIT)
        await(stream, work->event);
    else if (sim_driver.has_backing)
        queue(stream, work);
}

static void copy_rows(const struct sim_copy *copy) {
    for (size_t z = 0; z < copy->depth; z++)
        for (size_t y = 0; y < copy->height; y++)
            memmove((void *)(copy->to + z * copy->to_slice_bytes + y * copy->to_row_bytes),
                    (const void *)(copy->from + z * copy->from_slice_bytes + y * copy->from_row_bytes),
                    copy->width_bytes);
}

static void fill_row(uintptr_t to, const struct sim_fill *fill) {
    if (fill->value == 0) {
        sim_backing_zero(to, fill->width * fill->element_bytes);
        return;
    }
    for (size_t x = 0; x < fill->width; x++)
        memcpy((void *)(to + x * fill->element_bytes), &fill->value, fill->element_bytes);
}

static void fill_rows(const struct sim_fill *fill) {
    if (fill->element_bytes == 1 && fill->value != 0) {
        for (size_t y = 0; y < fill->height; y++)
            memset((void *)(fill->to + y * fill->row_bytes), (int)fill->value, fill->width);
        return;
    }
    for (size_t y = 0; y < fill->height; y++)
        fill_row(fill->to + y * fill->row_bytes, fill);
}

static void write_value(const struct sim_value *value) {
    if (value->bytes == 4)
        __atomic_store_n((uint32_t *)value->at, (uint32_t)value->value, __ATOMIC_SEQ_CST);
    else
        __atomic_store_n((uint64_t *)value->at, value->value, __ATOMIC_SEQ_CST);
}

static void reduce_word(uint32_t *word, uint32_t value, unsigned operation) {
    if (operation == CU_STREAM_ATOMIC_REDUCTION_OP_ADD)
        __atomic_fetch_add(word, value, __ATOMIC_SEQ_CST);
    else if (operation == CU_STREAM_ATOMIC_REDUCTION_OP_AND)
        __atomic_fetch_and(word, value, __ATOMIC_SEQ_CST);
    else
        __atomic_fetch_or(word, value, __ATOMIC_SEQ_CST);
}

static void reduce_long_word(uint64_t *word, uint64_t value, unsigned operation) {
    if (operation == CU_STREAM_ATOMIC_REDUCTION_OP_ADD)
        __atomic_fetch_add(word, value, __ATOMIC_SEQ_CST);
    else if (operation == CU_STREAM_ATOMIC_REDUCTION_OP_AND)
        __atomic_fetch_and(word, value, __ATOMIC_SEQ_CST);
    else
        __atomic_fetch_or(word, value, __ATOMIC_SEQ_CST);
}

static void reduce_value(const struct sim_value *value) {
    if (value->bytes == 4)
        reduce_word((uint32_t *)value->at, (uint32_t)value->value, value->flags);
    else
        reduce_long_word((uint64_t *)value->at, value->value, value->flags);
}

void sim_perform(const struct sim_work *work) {
    if (work->kind == SIM_WORK_FREE) {
        SIM_LOCKED();
        struct sim_range *range = sim_range_from(&sim_ranges, work->address);
        if (range != NULL) sim_pool_free(range);
    }
    if (!sim_driver.has_backing) return;
    if (work->kind == SIM_WORK_COPY) copy_rows(&work->copy);
    if (work->kind == SIM_WORK_FILL) fill_rows(&work->fill);
    if (work->kind == SIM_WORK_WRITE) write_value(&work->value);
    if (work->kind == SIM_WORK_REDUCE) reduce_value(&work->value);
}

static bool must_wait(const struct sim_work *work) {
    if (work->kind == SIM_WORK_HOST || work->kind == SIM_WORK_CHECK) return true;
    if (work->kind != SIM_WORK_AWAIT) return false;
    struct sim_shared_event *shared = work->event->shared;
    return work->event->unsettled > 0 ||
           (shared != NULL && !sim_shared_event_is_over(shared, SIM_LAST_RECORDING));
}

/* The legacy stream and those that keep step with it do not overtake each other's host functions. */
static void wait_for_step(CUstream stream) {
    CUcontext context = stream->context;
    if (__atomic_load_n(&context->deferred, __ATOMIC_ACQUIRE) == 0 || !stream->keeps_step) return;
    if (stream != context->legacy) {
        sim_deferred_wait(context->legacy, context->legacy->deferred_count);
        return;
    }
    for (uint32_t i = 0; i < sim_streams.used; i++) {
        CUstream other = sim_at(&sim_streams, i);
        if (other != NULL && other != stream && other->context == context && other->keeps_step)
            sim_deferred_wait(other, other->deferred_count);
    }
}

CUresult sim_submit(CUstream stream, const struct sim_work *work) {
    wait_for_step(stream);
    {
        SIM_LOCKED();
        if (stream->capture != NULL) return sim_capture_add(stream, work);
        SIM_TRY(sim_capture_forbids_legacy(stream));
        if (stream->first != NULL || must_wait(work)) return sim_defer(stream, work);
        sim_charge_time(stream, work);
    }
    sim_perform(work);
    return CUDA_SUCCESS;
}

CUresult sim_submit_and_wait(CUstream stream, const struct sim_work *work) {
    SIM_TRY(sim_capture_forbids(stream));
    SIM_TRY(sim_submit(stream, work));
    sim_stream_wait(stream);
    return sim_outcome();
}
