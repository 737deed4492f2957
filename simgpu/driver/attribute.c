/* Device attributes. What a GPU of the catalog differs in comes from gpus.conf, the rest is what recent GPUs
 * answer. */
#include "driver/driver.h"
#include "mps/mps.h"

struct attribute {
    CUdevice_attribute name;
    int value;
};

#define IS(name, value) {CU_DEVICE_ATTRIBUTE_##name, value}

static const struct attribute fixed[] = {
    IS(MAX_THREADS_PER_BLOCK, 1024),
    IS(MAX_BLOCK_DIM_X, 1024),
    IS(MAX_BLOCK_DIM_Y, 1024),
    IS(MAX_BLOCK_DIM_Z, 64),
    IS(MAX_GRID_DIM_X, 0x7fffffff),
    IS(MAX_GRID_DIM_Y, 65535),
    IS(MAX_GRID_DIM_Z, 65535),
    IS(MAX_SHARED_MEMORY_PER_BLOCK, 49152),
    IS(TOTAL_CONSTANT_MEMORY, 65536),
    IS(WARP_SIZE, 32),
    IS(MAX_PITCH, 0x7fffffff),
    IS(MAX_REGISTERS_PER_BLOCK, 65536),
    IS(TEXTURE_ALIGNMENT, 512),
    IS(GPU_OVERLAP, 1),
    IS(CAN_MAP_HOST_MEMORY, 1),
    IS(COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT),
    IS(MAXIMUM_TEXTURE1D_WIDTH, 131072),
    IS(MAXIMUM_TEXTURE2D_WIDTH, 131072),
    IS(MAXIMUM_TEXTURE2D_HEIGHT, 65536),
    IS(MAXIMUM_TEXTURE3D_WIDTH, 16384),
    IS(MAXIMUM_TEXTURE3D_HEIGHT, 16384),
    IS(MAXIMUM_TEXTURE3D_DEPTH, 16384),
    IS(MAXIMUM_TEXTURE2D_LAYERED_WIDTH, 32768),
    IS(MAXIMUM_TEXTURE2D_LAYERED_HEIGHT, 32768),
    IS(MAXIMUM_TEXTURE2D_LAYERED_LAYERS, 2048),
    IS(SURFACE_ALIGNMENT, 512),
    IS(CONCURRENT_KERNELS, 1),
    IS(ASYNC_ENGINE_COUNT, 2),
    IS(UNIFIED_ADDRESSING, 1),
    IS(TEXTURE_PITCH_ALIGNMENT, 32),
    IS(STREAM_PRIORITIES_SUPPORTED, 1),
    IS(GLOBAL_L1_CACHE_SUPPORTED, 1),
    IS(LOCAL_L1_CACHE_SUPPORTED, 1),
    IS(MAX_REGISTERS_PER_MULTIPROCESSOR, 65536),
    IS(MANAGED_MEMORY, 1),
    IS(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1),
    IS(COOPERATIVE_LAUNCH, 1),
    IS(COOPERATIVE_MULTI_DEVICE_LAUNCH, 1),
    IS(CAN_USE_STREAM_MEM_OPS_V1, 1),
    IS(CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 1),
    IS(CAN_USE_STREAM_WAIT_VALUE_NOR_V1, 1),
    IS(CAN_USE_64_BIT_STREAM_MEM_OPS, 1),
    IS(CAN_USE_STREAM_WAIT_VALUE_NOR, 1),
    IS(HOST_REGISTER_SUPPORTED, 1),
    IS(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1),
    IS(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1),
    IS(MAX_BLOCKS_PER_MULTIPROCESSOR, 32),
    IS(RESERVED_SHARED_MEMORY_PER_BLOCK, 1024),
    IS(SPARSE_CUDA_ARRAY_SUPPORTED, 0),
    IS(READ_ONLY_HOST_REGISTER_SUPPORTED, 1),
    IS(TIMELINE_SEMAPHORE_INTEROP_SUPPORTED, 0),
    IS(MEMORY_POOLS_SUPPORTED, 1),
    IS(MEMPOOL_SUPPORTED_HANDLE_TYPES, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
    IS(NUMA_ID, -1),
    IS(NUMA_CONFIG, CU_DEVICE_NUMA_CONFIG_NONE),
    IS(HOST_NUMA_ID, 0),
    IS(IPC_EVENT_SUPPORTED, 1),
    IS(UNIFIED_FUNCTION_POINTERS, 0),
};

static int hex_at(const char *text, size_t at) {
    unsigned value = 0;
    for (size_t i = at; i < at + 2 && text[i] != '\0'; i++)
        value = value * 16 + (unsigned)(text[i] <= '9' ? text[i] - '0' : (text[i] | 0x20) - 'a' + 10);
    return (int)(value & 0xff);
}

static int double_ratio(const struct sim_gpu *gpu) {
    return gpu->fp64_lanes_per_sm == 0 ? 0 : (int)(gpu->fp32_lanes_per_sm / gpu->fp64_lanes_per_sm);
}

/* The answers that differ by model; false: not one of them. */
static bool of_model(const struct sim_gpu *gpu, CUdevice_attribute name, int *value) {
    switch ((int)name) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        return *value = (int)sim_mps_sm_count(gpu), true;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
        return *value = (int)gpu->integrated, true;
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED:
        return *value = sim_mps.server != 0, true;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return *value = (int)gpu->compute_major, true;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        return *value = (int)gpu->compute_minor, true;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
        return *value = (int)gpu->clock_khz, true;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
        return *value = (int)gpu->memory_clock_khz, true;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
        return *value = (int)gpu->memory_bus_bits, true;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
        return *value = (int)gpu->l2_bytes, true;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        return *value = (int)gpu->threads_per_sm, true;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
        return *value = (int)gpu->shared_bytes_per_sm, true;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        return *value = (int)gpu->shared_bytes_per_sm - 1024, true;
    case CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO:
        return *value = double_ratio(gpu), true;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED: /* in the middle of a kernel: since Pascal */
        return *value = gpu->compute_major >= 6, true;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        return *value = hex_at(gpu->pci_bus_id, 9), true;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
        return *value = hex_at(gpu->pci_bus_id, 12), true;
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS: /* page faults came with Pascal */
        return *value = gpu->compute_major >= 6, true;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_UNICAST_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_MULTICAST_SUPPORTED:
        return *value = gpu->compute_major >= 9, true;
    default:
        return false;
    }
}

static int of_all(CUdevice_attribute name) {
    for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
        if (fixed[i].name == name) return fixed[i].value;
    return 0;
}

SIM_EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute name, CUdevice device) {
    SIM_ENTER();
    if (value == NULL || name <= 0 || name >= CU_DEVICE_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!of_model(sim_gpu_of(device), name, value)) *value = of_all(name);
    return CUDA_SUCCESS;
}
