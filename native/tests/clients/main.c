/* Take blocks of 64 MiB until refused; print their number, the error, and the GPU's reported size. */
#include <stdio.h>

#include "driver.h"

#define BLOCK_BYTES (64ull << 20)

static int begin(const struct driver *driver, size_t *total_bytes) {
    CUdevice device;
    CUcontext context;
    return driver->init(0) != CUDA_SUCCESS || driver->get_device(&device, 0) != CUDA_SUCCESS ||
           driver->total_bytes(total_bytes, device) != CUDA_SUCCESS ||
           driver->retain(&context, device) != CUDA_SUCCESS || driver->set_current(context) != CUDA_SUCCESS;
}

int main(void) {
    struct driver driver;
    size_t total_bytes = 0;
    if (reach(&driver) != 0 || begin(&driver, &total_bytes) != 0) return 1;
    unsigned blocks = 0;
    CUdeviceptr block;
    CUresult result;
    while ((result = driver.allocate(&block, BLOCK_BYTES)) == CUDA_SUCCESS)
        blocks++;
    printf("{\"blocks\": %u, \"error\": %d, \"total\": %zu}\n", blocks, (int)result, total_bytes);
    return 0;
}
