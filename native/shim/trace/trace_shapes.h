/* Kernels by name and shape: one row for each in the log, shared by all processes of the job. */
#ifndef PGPU_SHIM_TRACE_SHAPES_H
#define PGPU_SHIM_TRACE_SHAPES_H

#include "trace/trace.h"

/* The row of a kernel and its shape, plus 1; 0: none is free. */
uint32_t pgpu_trace_shape_of(const struct pgpu_trace_command *command);

/* One launch of it took this long. */
void pgpu_trace_measure(uint32_t shape, uint64_t duration_ns);

#endif
