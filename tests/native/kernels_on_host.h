// Just enough of CUDA C for the workloads' kernels to run on a host: blocks one after the other, the threads
// of a block as fibres that take turns at barriers. It refuses to be fast, and to find races.
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <ucontext.h>
#include <vector>

#define __device__
#define __global__
#define __shared__ static

struct float4 {
    float x, y, z, w;
};
struct dim {
    unsigned int x;
};

static inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}
static inline float rsqrtf(float value) {
    return 1.0f / sqrtf(value);
}

static dim threadIdx, blockIdx, blockDim, gridDim;

static inline float4 __ldcg(const float4 *at) {
    return *at;
}
static inline float4 __ldcs(const float4 *at) {
    return *at;
}
static inline int min(int one, int other) {
    return one < other ? one : other;
}
static inline int max(int one, int other) {
    return one > other ? one : other;
}
static inline float atomicAdd(float *at, float amount) {
    float before = *at;
    *at += amount;
    return before;
}
static inline unsigned int __float_as_uint(float value) {
    unsigned int bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}

#define STACK_BYTES 65536u

static ucontext_t scheduler;
static std::vector<ucontext_t> fibres;
static std::vector<bool> has_ended;
static std::function<void()> body;

static void fibre() {
    body();
    has_ended[threadIdx.x] = true;
    swapcontext(&fibres[threadIdx.x], &scheduler);
}

static void __syncthreads() {
    unsigned int mine = threadIdx.x;
    swapcontext(&fibres[mine], &scheduler);
    threadIdx.x = mine;
}

static void start_fibres(unsigned int threads, std::vector<char> &stacks) {
    for (unsigned int i = 0; i < threads; i++) {
        getcontext(&fibres[i]);
        fibres[i].uc_stack.ss_sp = stacks.data() + (size_t)i * STACK_BYTES;
        fibres[i].uc_stack.ss_size = STACK_BYTES;
        fibres[i].uc_link = nullptr;
        makecontext(&fibres[i], fibre, 0);
    }
}

static void run_block(unsigned int threads, std::vector<char> &stacks) {
    has_ended.assign(threads, false);
    start_fibres(threads, stacks);
    for (bool is_running = true; is_running;) {
        is_running = false;
        for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) {
            unsigned int turn = threadIdx.x;
            if (!has_ended[turn]) swapcontext(&scheduler, &fibres[turn]);
            threadIdx.x = turn;
            is_running = is_running || !has_ended[turn];
        }
    }
}

static void run_grid(unsigned int blocks, unsigned int threads, std::function<void()> kernel) {
    std::vector<char> stacks((size_t)threads * STACK_BYTES);
    fibres.resize(threads);
    body = kernel;
    gridDim.x = blocks;
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        run_block(threads, stacks);
}
