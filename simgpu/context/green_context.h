/* Green contexts: a device's primary context under another name, with a share of its multiprocessors. What is
 * made in one belongs to the primary context and outlives it; only its streams end with it. */
#ifndef SIM_GREEN_CONTEXT_H
#define SIM_GREEN_CONTEXT_H

#include "context/context.h"

struct CUgreenCtx_st {
    struct sim_head head;
    CUcontext context;
    CUdevice device;
    CUdevResource share;
};

#endif
