/* The stack of current contexts that every thread has. On the heap, so that the library needs few bytes of
 * static thread-local storage: with more of it a static program could not dlopen it. */
#include "context/context.h"

#include <pthread.h>
#include <stdlib.h>

struct frame {
    CUcontext context;
    struct frame *below;
};

static __thread struct frame *top;
__thread CUcontext sim_current;
static pthread_key_t at_thread_end;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void free_frames(void *frames) {
    for (struct frame *frame = frames, *below; frame != NULL; frame = below) {
        below = frame->below;
        free(frame);
    }
}

static void make_key(void) {
    pthread_key_create(&at_thread_end, free_frames);
}

static void set_top(struct frame *frame) {
    pthread_once(&once, make_key);
    top = frame;
    sim_current = frame == NULL ? NULL : frame->context;
    pthread_setspecific(at_thread_end, frame);
}

CUcontext sim_stack_top(void) {
    return sim_current;
}

CUresult sim_stack_push(CUcontext context) {
    struct frame *frame = malloc(sizeof *frame);
    if (frame == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *frame = (struct frame){.context = context, .below = top};
    set_top(frame);
    return CUDA_SUCCESS;
}

CUcontext sim_stack_pop(void) {
    struct frame *popped = top;
    if (popped == NULL) return NULL;
    CUcontext context = popped->context;
    set_top(popped->below);
    free(popped);
    return context;
}

CUresult sim_stack_set(CUcontext context) {
    if (context == NULL) {
        sim_stack_pop();
        return CUDA_SUCCESS;
    }
    if (top == NULL) return sim_stack_push(context);
    top->context = sim_current = context;
    return CUDA_SUCCESS;
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
