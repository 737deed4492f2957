/* How long a kernel takes and how much of a GPU it fills. */
#ifndef SIM_KERNEL_H
#define SIM_KERNEL_H

#include "module.h"
#include "work.h"

uint64_t sim_kernel_cost_ns(const struct sim_gpu *gpu, const struct sim_kernel_launch *launch,
                            bool *fills_gpu);

/* Blocks of a shape that one multiprocessor holds; 0: none. */
unsigned sim_blocks_per_sm(const struct sim_gpu *gpu, unsigned threads, size_t shared_bytes);

/* Whether a device takes a launch of this shape. */
CUresult sim_kernel_check(const struct sim_gpu *gpu, const struct sim_kernel_launch *launch);

/* The value of the parameter that a kernel's cost depends on, else 0. */
uint64_t sim_kernel_argument(CUfunction function, void **parameters, void **extra);

#endif
