/* A program linked with -lcuda. */
#include <stdio.h>
#include <stdlib.h>

int cuInit(unsigned flags);
int cuDeviceGet(int *device, int ordinal);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(unsigned long long *pointer, unsigned long bytes);

int main(int count, char **arguments) {
    int device;
    void *context;
    unsigned long long pointer;
    if (count < 2 || cuInit(0) != 0 || cuDeviceGet(&device, 0) != 0 ||
        cuDevicePrimaryCtxRetain(&context, device) != 0 || cuCtxSetCurrent(context) != 0) {
        puts("failed before the allocation");
        return 0;
    }
    printf("allocate %d\n", cuMemAlloc_v2(&pointer, strtoul(arguments[1], NULL, 10)));
    return 0;
}
