/* Where memory that names its own location is counted, and references to physical memory. */
#ifndef PGPU_SHIM_VMM_H
#define PGPU_SHIM_VMM_H

#include <stdbool.h>

#include "cuda_abi.h"
#include "slice/holdings.h"

/* `role` of an allocation. Imported memory: its size shows only when it is mapped. */
#define PGPU_VMM_GROWS_WHEN_MAPPED 1u
/* No memory, but what is bound to it stays alive with it. */
#define PGPU_VMM_IS_MULTICAST 2u

bool pgpu_vmm_is_on_host(const CUmemLocation *location);

/* Whether memory at this location is a GPU's, and of a device that exists. */
bool pgpu_vmm_is_charged(const CUmemLocation *location);

CUdevice pgpu_vmm_ordinal_of(const CUmemLocation *location);

/* A number that no row of the same kind has. */
uint64_t pgpu_vmm_next_number(void);

/* A handle that the driver gave, for `bytes` that are charged already. */
void pgpu_vmm_note_allocation(CUmemGenericAllocationHandle handle, int gpu, uint64_t bytes, uint64_t role);

/* Add a reference to the allocation behind a handle, or at an address, and return its number; 0 if there is
 * none. `gpu` (may be NULL) is set to the GPU that it is charged to. */
uint64_t pgpu_vmm_hold(CUmemGenericAllocationHandle handle, int *gpu);
uint64_t pgpu_vmm_hold_at(uint64_t address, int *gpu);

/* The end of the mapping that covers an address, or 0. */
uint64_t pgpu_vmm_mapping_end(uint64_t address);

/* After the driver bound an allocation, held before, at an offset of an object: note the binding, or drop the
 * allocation. 0: there is none to note. */
CUresult pgpu_vmm_finish_bind(uint64_t object, uint64_t offset, int gpu, uint64_t allocation,
                              CUresult result);

/* One reference less; the last one refunds. */
void pgpu_vmm_drop(uint64_t allocation);

#endif
