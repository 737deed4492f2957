/* Through cuGetProcAddress, as the CUDA runtime does. */
#include <dlfcn.h>
#include <stdio.h>

#include "driver.h"

static __typeof__(cuGetProcAddress_v2) *get_address;

static int find(const char *name, void **function) {
    CUdriverProcAddressQueryResult found;
    CUresult result = get_address(name, function, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &found);
    if (result == CUDA_SUCCESS && *function != NULL) return 0;
    return fprintf(stderr, "%s: %d\n", name, (int)result), 1;
}

int reach(struct driver *driver) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) return fprintf(stderr, "%s\n", dlerror()), 1;
    *(void **)&get_address = dlsym(library, "cuGetProcAddress_v2");
    return find("cuInit", (void **)&driver->init) || find("cuDeviceGet", (void **)&driver->get_device) ||
           find("cuDeviceTotalMem", (void **)&driver->total_bytes) ||
           find("cuDevicePrimaryCtxRetain", (void **)&driver->retain) ||
           find("cuCtxSetCurrent", (void **)&driver->set_current) ||
           find("cuMemAlloc", (void **)&driver->allocate);
}
