/* Shares of a device's multiprocessors: told, split and described for a green context. */
#ifndef SIM_SHARE_OF_DEVICE_H
#define SIM_SHARE_OF_DEVICE_H

#include "driver/driver.h"

/* What a description gives of a device. */
CUresult sim_share_described(CUdevResourceDesc description, CUdevice device, CUdevResource *share);

#endif
