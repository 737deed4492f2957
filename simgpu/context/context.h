/* Contexts: each costs device memory, owns what is made in it, and lies on threads' stacks. */
#ifndef SIM_CONTEXT_H
#define SIM_CONTEXT_H

#include "driver/driver.h"

struct CUctx_st {
    struct sim_head head;
    unsigned gpu; /* index into config.gpu */
    CUdevice device;
    unsigned flags, api_version;
    bool is_primary;
    unsigned long long id;
    CUstream legacy;          /* the default stream */
    uint64_t blocking_end_ns; /* when the streams that keep step with the legacy stream end */
    uint64_t end_ns;          /* when all its streams end */
    unsigned deferred;        /* works that wait behind host functions, in all its streams */
    uint32_t peers;           /* bit d: peer access to device d is on */
    size_t limit[CU_LIMIT_MAX];
    CUcontext primary; /* of a green context: the one that it is another name of, else NULL */
    CUgreenCtx green;
    CUfunc_cache cache;
    CUsharedconfig shared;
};

static inline bool sim_is_context(CUcontext context) {
    return context != NULL && sim_is_live(&sim_contexts, context);
}

/* Make a context and charge it. */
CUresult sim_context_new(CUdevice device, unsigned flags, CUcontext *context);

/* A green context's; it costs nothing. */
CUresult sim_context_new_green(CUcontext primary, CUgreenCtx green, CUcontext *context);
/* Destroy it; what was made in it goes to the primary context, its streams come to nothing. */
void sim_context_delete_green(CUcontext context);

/* The context that owns what is made in one. */
static inline CUcontext sim_root(CUcontext context) {
    return context->primary != NULL ? context->primary : context;
}

/* Destroy it with everything made in it. */
void sim_context_delete(CUcontext context);

/* Wait for all its streams. */
void sim_context_wait(CUcontext context);

/* The thread's stack of contexts. */
CUcontext sim_stack_top(void);
CUresult sim_stack_push(CUcontext context);
CUcontext sim_stack_pop(void);
CUresult sim_stack_set(CUcontext context);

#endif
