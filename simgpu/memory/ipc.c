/* Memory of one process used in another, by the handles of CUDA's first interface for that. */
#include <string.h>

#include "memory/shared_allocation.h"

SIM_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    struct sim_share_ticket ticket;
    if (handle == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    struct sim_range *range = sim_range_at(&sim_ranges, address);
    if (range == NULL || range->kind != SIM_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_share(range, &ticket));
    memcpy(handle, &ticket, sizeof(*handle));
    return CUDA_SUCCESS;
}

/* A process does not open its own memory: NVIDIA's driver refuses that too. */
static bool is_own(const struct sim_share_ticket *ticket) {
    struct sim_share_ticket own;
    struct sim_range *range = sim_range_from(&sim_ranges, ticket->address);
    bool is_shared = range != NULL && range->kind == SIM_DEVICE && range->source != NULL;
    return is_shared && sim_share(range, &own) == CUDA_SUCCESS && strcmp(own.name, ticket->name) == 0;
}

SIM_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags) {
    SIM_ENTER_CONTEXT(context);
    struct sim_share_ticket ticket;
    struct sim_range *range;
    if (address == NULL || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
    memcpy(&ticket, &handle, sizeof(ticket));
    SIM_LOCKED();
    if (is_own(&ticket)) return CUDA_ERROR_INVALID_CONTEXT;
    SIM_TRY(sim_share_open(&ticket, &range));
    range->context = context;
    *address = range->start;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags) {
    return cuIpcOpenMemHandle_v2(address, handle, flags);
}

SIM_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    SIM_LOCKED();
    struct sim_range *range = sim_range_from(&sim_ranges, address);
    if (range == NULL || range->kind != SIM_IMPORTED || range->source == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    sim_share_close(range);
    return CUDA_SUCCESS;
}
