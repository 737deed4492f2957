/* The lease's GPUs among those of the real NVML, in the lease's order. The others do not exist for the job,
 * so that NVML's indices are CUDA's. Where the lease is a MIG instance, its GPU is there, with this instance
 * alone, and stands for it in memory queries and process lists. Where no GPU of the lease is found nothing is
 * hidden. */
#ifndef PGPU_SHIM_NVML_DEVICES_H
#define PGPU_SHIM_NVML_DEVICES_H

#include "nvml/nvml_functions.h"

#define PGPU_NO_GPU (-1)

/* Find the lease's GPUs among the real NVML's devices; after every successful nvmlInit. */
void pgpu_nvml_find_devices(void);

/* The limit file's index of a device (or, for a GPU of a MIG lease, of the instance), or PGPU_NO_GPU. */
int pgpu_nvml_gpu_of(nvmlDevice_t device);

#endif
