/* Access between devices: all simulated devices reach each other. */
#include "context/context.h"

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
