/* Where memory that names its own location is counted. */
#ifndef PGPU_SHIM_VMM_H
#define PGPU_SHIM_VMM_H

#include <stdbool.h>

#include "cuda_abi.h"

/* Whether memory at this location is a GPU's, and of a device that exists. */
bool pgpu_vmm_is_charged(const CUmemLocation *location);

CUdevice pgpu_vmm_ordinal_of(const CUmemLocation *location);

#endif
