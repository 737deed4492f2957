/* What nodes do: the client's descriptions turned into work. */
#include "graph/graph.h"
#include "launch/kernel.h"
#include "copy/place.h"

static CUfunction function_of(const CUDA_KERNEL_NODE_PARAMS *kernel) {
    return kernel->func != NULL ? kernel->func : (CUfunction)(void *)kernel->kern;
}

static CUresult translate_kernel(const CUDA_KERNEL_NODE_PARAMS *kernel, struct sim_work *work) {
    CUcontext context;
    CUfunction function = function_of(kernel);
    if (!sim_is_function(function)) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_current_context(&context));
    work->kind = SIM_WORK_KERNEL;
    work->kernel =
        (struct sim_kernel_launch){.function = function,
                                   .grid = {kernel->gridDimX, kernel->gridDimY, kernel->gridDimZ},
                                   .block = {kernel->blockDimX, kernel->blockDimY, kernel->blockDimZ},
                                   .shared_bytes = kernel->sharedMemBytes};
    sim_kernel_read_arguments(&work->kernel, kernel->kernelParams, kernel->extra);
    return sim_kernel_check(&sim_driver.config.gpu[context->gpu], &work->kernel);
}

static CUresult translate_memset(const CUDA_MEMSET_NODE_PARAMS_v2 *fill, struct sim_work *work) {
    if (fill->elementSize != 1 && fill->elementSize != 2 && fill->elementSize != 4)
        return CUDA_ERROR_INVALID_VALUE;
    if (fill->dst == 0 || fill->dst % fill->elementSize != 0) return CUDA_ERROR_INVALID_VALUE;
    work->kind = SIM_WORK_FILL;
    work->fill =
        (struct sim_fill){fill->dst, fill->value, fill->elementSize, fill->width, fill->height, fill->pitch};
    return CUDA_SUCCESS;
}

static CUresult translate_host(const CUDA_HOST_NODE_PARAMS_v2 *host, struct sim_work *work) {
    if (host->fn == NULL) return CUDA_ERROR_INVALID_VALUE;
    work->kind = SIM_WORK_HOST;
    work->host = (struct sim_host_call){.function = host->fn, .data = host->userData};
    return CUDA_SUCCESS;
}

static CUresult translate_event(CUevent event, enum sim_work_kind kind, struct sim_work *work) {
    if (event == NULL || !sim_is_live(&sim_events, event)) return CUDA_ERROR_INVALID_VALUE;
    work->kind = kind;
    work->event = event;
    return CUDA_SUCCESS;
}

CUresult sim_node_translate(const CUgraphNodeParams *params, struct sim_work *work) {
    *work = (struct sim_work){.kind = SIM_WORK_NOTHING};
    switch ((int)params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return translate_kernel(&params->kernel, work);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return sim_copy_shaped(&params->memcpy.copyParams, false, work);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return translate_memset(&params->memset, work);
    case CU_GRAPH_NODE_TYPE_HOST:
        return translate_host(&params->host, work);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return translate_event(params->eventRecord.event, SIM_WORK_RECORD, work);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return translate_event(params->eventWait.event, SIM_WORK_AWAIT, work);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        work->kind = SIM_WORK_ALLOC;
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        work->kind = SIM_WORK_FREE;
        work->address = params->free.dptr;
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH:
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

static void describe_kernel(const struct sim_kernel_launch *kernel, CUDA_KERNEL_NODE_PARAMS *params) {
    params->func = kernel->function;
    params->gridDimX = kernel->grid[0];
    params->gridDimY = kernel->grid[1];
    params->gridDimZ = kernel->grid[2];
    params->blockDimX = kernel->block[0];
    params->blockDimY = kernel->block[1];
    params->blockDimZ = kernel->block[2];
    params->sharedMemBytes = kernel->shared_bytes;
}

static void describe_copy(const struct sim_copy *copy, CUDA_MEMCPY3D *shape) {
    *shape = (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                             .srcDevice = copy->from,
                             .srcPitch = copy->from_row_bytes,
                             .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                             .dstDevice = copy->to,
                             .dstPitch = copy->to_row_bytes,
                             .WidthInBytes = copy->width_bytes,
                             .Height = copy->height,
                             .Depth = copy->depth};
}

void sim_node_describe(const struct sim_work *work, CUgraphNodeParams *params) {
    *params = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_EMPTY};
    switch (work->kind) {
    case SIM_WORK_KERNEL:
        params->type = CU_GRAPH_NODE_TYPE_KERNEL;
        describe_kernel(&work->kernel, &params->kernel);
        break;
    case SIM_WORK_COPY:
        params->type = CU_GRAPH_NODE_TYPE_MEMCPY;
        describe_copy(&work->copy, &params->memcpy.copyParams);
        break;
    case SIM_WORK_FILL:
        params->type = CU_GRAPH_NODE_TYPE_MEMSET;
        params->memset = (CUDA_MEMSET_NODE_PARAMS_v2){work->fill.to,
                                                      work->fill.row_bytes,
                                                      work->fill.value,
                                                      work->fill.element_bytes,
                                                      work->fill.width,
                                                      work->fill.height,
                                                      NULL};
        break;
    case SIM_WORK_HOST:
        params->type = CU_GRAPH_NODE_TYPE_HOST;
        params->host.fn = work->host.function;
        params->host.userData = work->host.data;
        break;
    case SIM_WORK_RECORD:
    case SIM_WORK_AWAIT:
        params->type =
            work->kind == SIM_WORK_RECORD ? CU_GRAPH_NODE_TYPE_EVENT_RECORD : CU_GRAPH_NODE_TYPE_WAIT_EVENT;
        params->eventRecord.event = work->event;
        break;
    case SIM_WORK_FREE:
        params->type = CU_GRAPH_NODE_TYPE_MEM_FREE;
        params->free.dptr = work->address;
        break;
    default:
        break;
    }
}

CUresult sim_node_set(CUgraphNode node, const CUgraphNodeParams *params) {
    struct sim_work work;
    if (params->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) return sim_batch_set(node, &params->memOp);
    SIM_TRY(sim_node_translate(params, &work));
    node->params = *params;
    /* The client's list of arguments need not outlive its call. */
    if (params->type == CU_GRAPH_NODE_TYPE_KERNEL)
        node->params.kernel.kernelParams = node->params.kernel.extra = NULL;
    node->work = work;
    return CUDA_SUCCESS;
}
