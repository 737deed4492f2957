/* What a device is. */
#include <string.h>

#include "cudart.h"

EXPORT cudaError_t cudaDeviceGetAttribute(int *value, CUdevice_attribute attribute, int device) {
    ENTER();
    return cudart_result(DRIVER(cuDeviceGetAttribute)(value, attribute, device));
}

EXPORT cudaError_t cudaDeviceGetPCIBusId(char *bus_id, int length, int device) {
    ENTER();
    return cudart_result(DRIVER(cuDeviceGetPCIBusId)(bus_id, length, device));
}

EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can_access, int device, int peer) {
    ENTER();
    return cudart_result(DRIVER(cuDeviceCanAccessPeer)(can_access, device, peer));
}

EXPORT cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
    ENTER();
    CUcontext context;
    CUresult result = DRIVER(cuDevicePrimaryCtxRetain)(&context, peer);
    return cudart_result(result == CUDA_SUCCESS ? DRIVER(cuCtxEnablePeerAccess)(context, flags) : result);
}

EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    ENTER();
    return cudart_result(DRIVER(cuCtxGetStreamPriorityRange)(least, greatest));
}

EXPORT cudaError_t cudaDeviceSynchronize(void) {
    ENTER();
    return cudart_result(DRIVER(cuCtxSynchronize)());
}

EXPORT cudaError_t cudaDeviceGetDefaultMemPool(CUmemoryPool *pool, int device) {
    ENTER();
    return cudart_result(DRIVER(cuDeviceGetDefaultMemPool)(pool, device));
}

/* cudaDeviceProp as CUDA 13 lays it out; what frameworks do not read stays 0. */
struct properties {
    char name[256];
    char uuid[16];
    char luid[8];
    unsigned int luid_mask;
    size_t total_bytes, shared_per_block;
    int registers_per_block, warp_size;
    size_t pitch;
    int threads_per_block, threads_dim[3], grid_size[3];
    size_t constant_bytes;
    int major, minor;
    size_t texture_alignment, texture_pitch_alignment;
    int sm_count, is_integrated, can_map_host;
    int textures[25], surfaces[14];
    size_t surface_alignment;
    int concurrent_kernels, ecc, pci_bus, pci_device, pci_domain, tcc, engines, unified, bus_bits, l2_bytes,
        l2_persisting;
    int threads_per_sm, stream_priorities, global_l1, local_l1;
    size_t shared_per_sm;
    int registers_per_sm, managed, multi_gpu, multi_gpu_group, host_atomics, pageable, concurrent_managed,
        preemption;
    int host_pointers, cooperative;
    size_t shared_opt_in;
    int pageable_tables, direct_managed, blocks_per_sm, window;
    size_t shared_reserved;
    int rest[76];
};

static int attribute(CUdevice_attribute which, int device) {
    int value = 0;
    DRIVER(cuDeviceGetAttribute)(&value, which, device);
    return value;
}

#define ATTRIBUTE(name) attribute(CU_DEVICE_ATTRIBUTE_##name, device)

static void fill_limits(struct properties *properties, int device) {
    properties->shared_per_block = (size_t)ATTRIBUTE(MAX_SHARED_MEMORY_PER_BLOCK);
    properties->shared_per_sm = (size_t)ATTRIBUTE(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    properties->shared_opt_in = (size_t)ATTRIBUTE(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    properties->registers_per_block = ATTRIBUTE(MAX_REGISTERS_PER_BLOCK);
    properties->registers_per_sm = ATTRIBUTE(MAX_REGISTERS_PER_MULTIPROCESSOR);
    properties->warp_size = ATTRIBUTE(WARP_SIZE);
    properties->threads_per_block = ATTRIBUTE(MAX_THREADS_PER_BLOCK);
    properties->threads_per_sm = ATTRIBUTE(MAX_THREADS_PER_MULTIPROCESSOR);
    for (int axis = 0; axis < 3; axis++) {
        properties->threads_dim[axis] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + axis, device);
        properties->grid_size[axis] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + axis, device);
    }
}

static void fill_identity(struct properties *properties, int device) {
    properties->major = ATTRIBUTE(COMPUTE_CAPABILITY_MAJOR);
    properties->minor = ATTRIBUTE(COMPUTE_CAPABILITY_MINOR);
    properties->sm_count = ATTRIBUTE(MULTIPROCESSOR_COUNT);
    properties->l2_bytes = ATTRIBUTE(L2_CACHE_SIZE);
    properties->bus_bits = ATTRIBUTE(GLOBAL_MEMORY_BUS_WIDTH);
    properties->pci_bus = ATTRIBUTE(PCI_BUS_ID);
    properties->pci_device = ATTRIBUTE(PCI_DEVICE_ID);
    properties->pci_domain = ATTRIBUTE(PCI_DOMAIN_ID);
    properties->unified = properties->managed = properties->can_map_host = properties->concurrent_kernels = 1;
    properties->cooperative = properties->stream_priorities = 1;
}

EXPORT cudaError_t cudaGetDeviceProperties(struct properties *properties, int device) {
    _Static_assert(offsetof(struct properties, shared_per_sm) == 624, "layout of CUDA 13");
    _Static_assert(sizeof(*properties) == 1008, "layout of CUDA 13");
    memset(properties, 0, sizeof(*properties));
    CUuuid uuid;
    CUresult result = cudart_enter();
    if (result == CUDA_SUCCESS)
        result = DRIVER(cuDeviceGetName)(properties->name, sizeof(properties->name), device);
    if (result == CUDA_SUCCESS) result = DRIVER(cuDeviceGetUuid_v2)(&uuid, device);
    if (result == CUDA_SUCCESS) result = DRIVER(cuDeviceTotalMem_v2)(&properties->total_bytes, device);
    if (result != CUDA_SUCCESS) return cudart_result(result);
    memcpy(properties->uuid, &uuid, sizeof(properties->uuid));
    fill_limits(properties, device);
    fill_identity(properties, device);
    return 0;
}
