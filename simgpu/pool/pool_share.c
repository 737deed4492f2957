/* Pools shared between processes: the pool travels as a descriptor, its allocations one by one. What is
 * imported is counted by the process that made it. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "pool/pool.h"
#include "memory/shared_allocation.h"

/* An empty memory file with the pool's GPU in its name. */
static int make_descriptor(unsigned gpu) {
    char name[32];
    snprintf(name, sizeof(name), "simgpu-pool-%u", gpu);
    return (int)syscall(SYS_memfd_create, name, 1u /* MFD_CLOEXEC */);
}

static bool read_descriptor(int fd, unsigned *gpu) {
    char link[64], name[128];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, sizeof(name) - 1);
    if (length <= 0) return false;
    name[length] = '\0';
    return sscanf(name, "/memfd:simgpu-pool-%u", gpu) == 1;
}

SIM_EXPORT CUresult cuMemPoolExportToShareableHandle(void *shareable, CUmemoryPool pool,
                                                     CUmemAllocationHandleType type,
                                                     unsigned long long flags) {
    SIM_ENTER();
    if (shareable == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    SIM_LOCKED();
    if (!sim_pool_is(pool) || pool->is_imported || pool->properties.handleTypes != type)
        return CUDA_ERROR_INVALID_VALUE;
    int fd = make_descriptor(pool->gpu);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    memcpy(shareable, &fd, sizeof(fd));
    sim_checkpoint_refuse_shared();
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shareable,
                                                       CUmemAllocationHandleType type,
                                                       unsigned long long flags) {
    SIM_ENTER();
    unsigned gpu;
    CUdevice device = 0;
    if (pool == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    if (!read_descriptor((int)(intptr_t)shareable, &gpu)) return CUDA_ERROR_INVALID_VALUE;
    while (device < sim_driver.device_count && sim_driver.gpu_of_device[device] != gpu)
        device++;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    SIM_LOCKED();
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    *pool = sim_pool_new(device, CU_MEM_ALLOCATION_TYPE_PINNED, &location);
    if (*pool == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    (*pool)->is_default = false;
    (*pool)->is_imported = true;
    sim_checkpoint_refuse_shared();
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr address) {
    SIM_ENTER();
    struct sim_share_ticket ticket;
    if (data == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    struct sim_range *range = sim_range_from(&sim_ranges, address);
    bool is_exportable = range != NULL && range->kind == SIM_POOLED &&
                         range->pool->properties.handleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (!is_exportable) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_share(range, &ticket));
    memcpy(data, &ticket, sizeof(*data));
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool,
                                           CUmemPoolPtrExportData *data) {
    SIM_ENTER();
    struct sim_share_ticket ticket;
    struct sim_range *range;
    if (address == NULL || data == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    if (!sim_pool_is(pool) || !pool->is_imported) return CUDA_ERROR_INVALID_VALUE;
    memcpy(&ticket, data, sizeof(ticket));
    SIM_TRY(sim_share_open(&ticket, &range));
    range->pool = pool;
    *address = range->start;
    return CUDA_SUCCESS;
}
