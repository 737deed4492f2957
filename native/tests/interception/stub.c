/* Something to link against that has the driver's SONAME; it is never loaded. */
#define EXPORT __attribute__((visibility("default")))

EXPORT int cuInit(unsigned flags);
EXPORT int cuDeviceGet(int *device, int ordinal);
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device);
EXPORT int cuCtxSetCurrent(void *context);
EXPORT int cuMemAlloc_v2(unsigned long long *pointer, unsigned long bytes);

int cuInit(unsigned flags) {
    return (int)flags;
}
int cuDeviceGet(int *device, int ordinal) {
    return *device = ordinal;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    return *context = 0, device;
}
int cuCtxSetCurrent(void *context) {
    return context != 0;
}
int cuMemAlloc_v2(unsigned long long *pointer, unsigned long bytes) {
    return (int)(*pointer = bytes);
}
