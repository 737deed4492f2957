#include "attempt.h"

#include <dlfcn.h>
#include <stdio.h>

static int say(const char *step, int result) {
    printf("%s %d\n", step, result);
    fflush(stdout);
    return result;
}

void *find_by_dlsym(void *context, const char *name) {
    return dlsym(context, name);
}

void attempt(find_function find, void *context, size_t bytes) {
    int (*init)(unsigned) = (int (*)(unsigned))find(context, "cuInit");
    int (*get)(int *, int) = (int (*)(int *, int))find(context, "cuDeviceGet");
    int (*retain)(void **, int) = (int (*)(void **, int))find(context, "cuDevicePrimaryCtxRetain");
    int (*set)(void *) = (int (*)(void *))find(context, "cuCtxSetCurrent");
    int (*take)(unsigned long long *, size_t) =
        (int (*)(unsigned long long *, size_t))find(context, "cuMemAlloc_v2");
    if (init == NULL || get == NULL || retain == NULL || set == NULL || take == NULL) {
        puts("missing a function");
        return;
    }
    int device;
    void *driver_context;
    unsigned long long pointer;
    if (say("init", init(0)) != 0 || get(&device, 0) != 0 ||
        say("context", retain(&driver_context, device)) != 0 || set(driver_context) != 0)
        return;
    say("allocate", take(&pointer, bytes));
}
