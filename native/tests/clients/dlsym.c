/* Through dlopen and dlsym, as most libraries do. */
#include <dlfcn.h>
#include <stdio.h>

#include "driver.h"

int reach(struct driver *driver) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) return fprintf(stderr, "%s\n", dlerror()), 1;
    *(void **)&driver->init = dlsym(library, "cuInit");
    *(void **)&driver->get_device = dlsym(library, "cuDeviceGet");
    *(void **)&driver->total_bytes = dlsym(library, "cuDeviceTotalMem_v2");
    *(void **)&driver->retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    *(void **)&driver->set_current = dlsym(library, "cuCtxSetCurrent");
    *(void **)&driver->allocate = dlsym(library, "cuMemAlloc_v2");
    return 0;
}
