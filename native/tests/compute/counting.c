/* A driver whose calls around measured launches are counted: those of the simulated one, which lies beside it
 * as libcuda.so.9. The count is the first word of the file that PGPU_TEST_COUNT names. Where
 * PGPU_TEST_SLOW_RECORD is set, an event that is not recorded by the first thread takes so many milliseconds,
 * and the second word is 1 from its beginning on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_abi.h"

static uint64_t *count;
static void *driver;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("PGPU_TEST_COUNT");
    int file = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    void *at = mmap(NULL, sizeof(*count), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    driver = dlopen("libcuda.so.9", RTLD_NOW | RTLD_NOLOAD);
    if (file < 0 || at == MAP_FAILED || driver == NULL) abort();
    close(file);
    count = at;
}

static void *counted(const char *name) {
    __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
    return dlsym(driver, name);
}

#define COUNTED(function, parameters, arguments)                                                             \
    __attribute__((visibility("default"))) CUresult function parameters {                                    \
        return ((__typeof__(function) *)counted(#function))arguments;                                        \
    }

__attribute__((visibility("default"))) CUresult cuEventRecord(CUevent event, CUstream stream) {
    const char *slow = getenv("PGPU_TEST_SLOW_RECORD");
    if (slow != NULL && gettid() != getpid()) {
        __atomic_store_n(&count[1], 1, __ATOMIC_RELEASE);
        usleep((useconds_t)atoi(slow) * 1000);
    }
    return ((__typeof__(cuEventRecord) *)counted("cuEventRecord"))(event, stream);
}
COUNTED(cuEventRecord_ptsz, (CUevent event, CUstream stream), (event, stream))
COUNTED(cuEventQuery, (CUevent event), (event))
COUNTED(cuEventElapsedTime, (float *milliseconds, CUevent start, CUevent end), (milliseconds, start, end))
COUNTED(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode), (mode))
