/* The stack of current contexts that every thread has. */
#include "context.h"

#define DEPTH 128

static __thread struct {
    unsigned count;
    CUcontext context[DEPTH];
} stack;

CUcontext sim_stack_top(void) {
    return stack.count == 0 ? NULL : stack.context[stack.count - 1];
}

CUresult sim_stack_push(CUcontext context) {
    if (stack.count == DEPTH) return CUDA_ERROR_OUT_OF_MEMORY;
    stack.context[stack.count++] = context;
    return CUDA_SUCCESS;
}

CUcontext sim_stack_pop(void) {
    return stack.count == 0 ? NULL : stack.context[--stack.count];
}

CUresult sim_stack_set(CUcontext context) {
    if (context == NULL) {
        sim_stack_pop();
        return CUDA_SUCCESS;
    }
    if (stack.count == 0) return sim_stack_push(context);
    stack.context[stack.count - 1] = context;
    return CUDA_SUCCESS;
}

CUresult sim_current_context(CUcontext *context) {
    *context = sim_stack_top();
    if (*context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    return sim_is_context(*context) ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

SIM_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
    SIM_ENTER();
    if (!sim_is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    return sim_stack_push(context);
}

SIM_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    SIM_ENTER();
    if (sim_stack_top() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    CUcontext popped = sim_stack_pop();
    if (context != NULL) *context = popped;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    SIM_ENTER();
    if (context != NULL && !sim_is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    return sim_stack_set(context);
}

SIM_EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    SIM_ENTER();
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    *context = sim_stack_top();
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxPushCurrent(CUcontext context) {
    return cuCtxPushCurrent_v2(context);
}

SIM_EXPORT CUresult cuCtxPopCurrent(CUcontext *context) {
    return cuCtxPopCurrent_v2(context);
}
