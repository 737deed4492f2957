/* Managed memory: how much of each process's lies on a device, and what it costs when a kernel touches what
 * does not. Pages have no names here: a process's managed memory on a GPU is one heap, of which some bytes
 * are resident. docs/simulated-gpu.md has the model. */
#ifndef SIM_RESIDENCY_H
#define SIM_RESIDENCY_H

#include "cuda_abi.h"
#include "time/demand.h"

/* Whether a GPU moves managed memory while kernels run: since Pascal. Elsewhere it is ordinary memory. */
static inline bool sim_residency_pages(const struct sim_gpu *gpu) {
    return gpu->compute_major >= 6;
}

/* Managed memory that this process has for a GPU. */
CUresult sim_residency_add(unsigned gpu, uint64_t bytes);
void sim_residency_remove(unsigned gpu, uint64_t bytes);
uint64_t sim_residency_total(unsigned gpu);

/* How fast work runs that touches managed memory, as a part of its speed with all of it resident. */
double sim_residency_speed(unsigned gpu, const struct sim_demand *mean);
/* It ran for so long of its own time, and what it touched came in. */
void sim_residency_touch(unsigned gpu, const struct sim_demand *mean, uint64_t done_ns);

/* Bring up to so many bytes in, or out; return how many moved over the bus, others' that had to go among
 * them. */
uint64_t sim_residency_move_in(unsigned gpu, uint64_t bytes);
uint64_t sim_residency_move_out(unsigned gpu, uint64_t bytes);

/* Memory was taken that must stay on the device: managed memory makes room. */
void sim_residency_make_room(unsigned gpu);

/* What managed memory of all processes holds of a device. */
uint64_t sim_residency_bytes(unsigned gpu);

#endif
