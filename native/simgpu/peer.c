/* Access between devices, and hints about managed memory: all simulated devices reach each other. */
#include "range.h"
#include "stream.h"

SIM_EXPORT CUresult cuDeviceCanAccessPeer(int *can_access, CUdevice device, CUdevice peer) {
    SIM_ENTER();
    if (can_access == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device) || !sim_is_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *can_access = device != peer;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
    SIM_ENTER_CONTEXT(context);
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_context(peer) || peer == context) return CUDA_ERROR_INVALID_CONTEXT;
    if (peer->device == context->device) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    SIM_LOCKED();
    if ((context->peers & (1u << peer->device)) != 0) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    context->peers |= 1u << peer->device;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    SIM_ENTER_CONTEXT(context);
    if (!sim_is_context(peer)) return CUDA_ERROR_INVALID_CONTEXT;
    SIM_LOCKED();
    if ((context->peers & (1u << peer->device)) == 0) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    context->peers &= ~(1u << peer->device);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute name, CUdevice from,
                                            CUdevice to) {
    SIM_ENTER();
    if (value == NULL || name <= 0 || (unsigned)name > CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(from) || !sim_is_device(to) || from == to) return CUDA_ERROR_INVALID_DEVICE;
    *value = name == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ? 0 : 1;
    return CUDA_SUCCESS;
}

static CUresult check_managed(CUdeviceptr address, size_t bytes) {
    SIM_LOCKED();
    const struct sim_range *range = sim_range_at(&sim_ranges, address);
    if (range == NULL || bytes == 0 || bytes > range->bytes - (address - range->start))
        return CUDA_ERROR_INVALID_VALUE;
    return range->kind == SIM_MANAGED || range->kind == SIM_REGISTERED ? CUDA_SUCCESS
                                                                       : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location,
                                          unsigned int flags, CUstream named) {
    SIM_ENTER();
    CUstream stream;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE && !sim_is_device(location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    SIM_TRY(check_managed(address, bytes));
    return sim_stream_of(named, &stream);
}

SIM_EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {
    bool is_host = device == CU_DEVICE_CPU;
    CUmemLocation location = {.type = is_host ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
                              .id = device};
    return cuMemPrefetchAsync_v2(address, bytes, location, 0, stream);
}

SIM_EXPORT CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice,
                                   CUmemLocation location) {
    SIM_ENTER();
    if (advice <= 0 || (unsigned)advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY) return CUDA_ERROR_INVALID_VALUE;
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE && !sim_is_device(location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    return check_managed(address, bytes);
}

SIM_EXPORT CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device) {
    bool is_host = device == CU_DEVICE_CPU;
    CUmemLocation location = {.type = is_host ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
                              .id = device};
    return cuMemAdvise_v2(address, bytes, advice, location);
}
