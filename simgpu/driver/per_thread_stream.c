/* The _ptds and _ptsz entry points: the plain call, with 0 meaning the per-thread default stream. */
#include "stream/stream.h"

#define CUDA_PER_THREAD(symbol, plain, parameters, arguments)                                                \
    SIM_EXPORT CUresult symbol parameters {                                                                  \
        bool was_per_thread = sim_is_per_thread_call;                                                        \
        sim_is_per_thread_call = true;                                                                       \
        CUresult result = plain arguments;                                                                   \
        sim_is_per_thread_call = was_per_thread;                                                             \
        return result;                                                                                       \
    }
#include "cuda_per_thread.def"
#undef CUDA_PER_THREAD
