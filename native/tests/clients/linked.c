/* Through the dynamic linker, as a program that was linked with -lcuda. */
#include "driver.h"

int reach(struct driver *driver) {
    *driver = (struct driver){cuInit,          cuDeviceGet,  cuDeviceTotalMem_v2, cuDevicePrimaryCtxRetain,
                              cuCtxSetCurrent, cuMemAlloc_v2};
    return 0;
}
