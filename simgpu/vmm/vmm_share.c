/* Physical memory handed to other processes as a file descriptor. It is counted where it was made, for as
 * long as the process that made it lives. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "vmm/vmm.h"

SIM_EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                                 CUmemAllocationHandleType type, unsigned long long flags) {
    SIM_ENTER();
    if (shareable == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    SIM_LOCKED();
    const struct sim_physical *physical = sim_physical_of(handle);
    if (physical == NULL || !physical->owns_file) return CUDA_ERROR_INVALID_VALUE;
    int fd = fcntl(physical->file, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    memcpy(shareable, &fd, sizeof(fd));
    sim_checkpoint_refuse_shared();
    return CUDA_SUCCESS;
}

/* The link of a memory file reads `/memfd:simgpu-GPU-BYTES (deleted)`. */
static bool read_name(int fd, unsigned *gpu, size_t *bytes) {
    char link[64], name[128];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, sizeof(name) - 1);
    if (length <= 0) return false;
    name[length] = '\0';
    return sscanf(name, "/memfd:simgpu-%u-%zu", gpu, bytes) == 2 && *gpu < sim_driver.config.device_count;
}

static bool is_same_file(int a, int b) {
    struct stat of_a, of_b;
    return fstat(a, &of_a) == 0 && fstat(b, &of_b) == 0 && of_a.st_ino == of_b.st_ino &&
           of_a.st_dev == of_b.st_dev;
}

/* What this process made or imported already gets one more handle. */
static struct sim_physical *find(int fd) {
    for (uint32_t i = 0; i < sim_physicals.used; i++) {
        struct sim_physical *physical = sim_at(&sim_physicals, i);
        if (physical != NULL && physical->owns_file && is_same_file(physical->file, fd)) return physical;
    }
    return NULL;
}

static CUdevice device_of(unsigned gpu) {
    CUdevice device = 0;
    while (device < sim_driver.device_count && sim_driver.gpu_of_device[device] != gpu)
        device++;
    return device;
}

static CUresult import(int fd, CUmemGenericAllocationHandle *handle) {
    unsigned gpu;
    size_t bytes;
    if (!read_name(fd, &gpu, &bytes) || !sim_is_device(device_of(gpu))) return CUDA_ERROR_INVALID_VALUE;
    struct sim_physical *physical = sim_new(&sim_physicals);
    if (physical == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    physical->is_imported = physical->owns_file = true;
    physical->gpu = gpu;
    physical->device = device_of(gpu);
    physical->bytes = bytes;
    physical->handle_count = 1;
    physical->file = fcntl(fd, F_DUPFD_CLOEXEC, 500);
    physical->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    physical->properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    physical->properties.location =
        (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = physical->device};
    *handle = (uintptr_t)physical;
    sim_checkpoint_refuse_shared();
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                                   CUmemAllocationHandleType type) {
    SIM_ENTER();
    int fd = (int)(intptr_t)shareable;
    if (handle == NULL || fd < 0) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    SIM_LOCKED();
    struct sim_physical *physical = find(fd);
    if (physical == NULL) return import(fd, handle);
    physical->handle_count++;
    *handle = (uintptr_t)physical;
    return CUDA_SUCCESS;
}
