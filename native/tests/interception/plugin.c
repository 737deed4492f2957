/* A plugin that its program loads with RTLD_DEEPBIND, so that its own dlopen and dlsym are libc's. */
#include <dlfcn.h>
#include <stdio.h>

#include "attempt.h"

__attribute__((visibility("default"))) void run_plugin(size_t bytes);

void run_plugin(size_t bytes) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL)
        printf("missing %s\n", dlerror());
    else
        attempt(find_by_dlsym, library, bytes);
}
