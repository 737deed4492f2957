/* Where a copy comes from or goes to. */
#ifndef SIM_PLACE_H
#define SIM_PLACE_H

#include "memory/range.h"
#include "stream/work.h"

/* Check that [address, address + bytes) is device memory that may be read and written. */
CUresult sim_check_device(CUdeviceptr address, size_t bytes);

/* A copy of a shape, its places resolved to addresses. `is_now` false: it runs later, its memory may come
 * until then. */
CUresult sim_copy_shaped(const CUDA_MEMCPY3D *shape, bool is_now, struct sim_work *work);

/* Whether an address is in the memory of a device; unknown addresses are the host's. */
bool sim_is_on_device(uintptr_t address);

#endif
