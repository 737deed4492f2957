/* The functions of the CUDA driver that the client calls, and one way to reach them. */
#ifndef CLIENTS_DRIVER_H
#define CLIENTS_DRIVER_H

#include "cuda_abi.h"

struct driver {
    CUresult (*init)(unsigned int);
    CUresult (*get_device)(CUdevice *, int);
    CUresult (*total_bytes)(size_t *, CUdevice);
    CUresult (*retain)(CUcontext *, CUdevice);
    CUresult (*set_current)(CUcontext);
    CUresult (*allocate)(CUdeviceptr *, size_t);
};

/* Fill `driver`; 0, or a message on stderr and 1. */
int reach(struct driver *driver);

#endif
