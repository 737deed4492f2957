/* Shares of a device's multiprocessors: queried, split and described for a green context. */
#ifndef SIM_DEVICE_RESOURCE_H
#define SIM_DEVICE_RESOURCE_H

#include "driver/driver.h"

/* What a description gives of a device. */
CUresult sim_share_described(CUdevResourceDesc description, CUdevice device, CUdevResource *share);

#endif
