/* One launch, graph launch, copy or fill on its way to the driver. */
#ifndef PGPU_SHIM_WORK_H
#define PGPU_SHIM_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "trace/trace.h"

struct pgpu_lane;

/* On the caller's stack. The caller fills in `command`, except `place`. */
struct pgpu_work {
    struct pgpu_trace_command command;
    CUgraphExec graph; /* of a graph launch */
    bool is_within;    /* a fill, or a copy within one device's memory: the multiprocessors do it */
    /* Used by the gate between before and after. */
    struct pgpu_trace_span span;
    struct pgpu_lane *lane; /* NULL: its time is not measured */
    uint64_t now_ns;
    uint64_t estimate_ns;
    uint32_t row;
    int8_t gpu; /* PGPU_NO_GPU: nothing is shared or measured */
    bool is_known;
    bool is_exact;     /* shares depend on its time: every part of it is measured */
    bool is_watched;   /* it is measured launch by launch */
    bool is_in_flight; /* on its way to the driver */
    bool has_duties;   /* it is traced, or loads code */
};

#endif
