// Kernels that take one resource from all other programs. A launch of few large blocks leaves the other multiprocessors
// alone; what its neighbours then lose they lose to the cache or to the memory.

// Reads a buffer over and over, each thread `AHEAD` loads of 16 bytes at a time, so that one block for each multiprocessor
// is enough. `sink` is written never, for no sum is negative: values are not.
template <unsigned int AHEAD, typename Load>
static __device__ void sweep_over(const float4 *data, unsigned long long quads, unsigned int sweeps, float *sink, Load load)
{
    unsigned long long first = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    float sum = 0.0f;
    for (unsigned int sweep = 0; sweep < sweeps; sweep++) {
#pragma unroll AHEAD
        for (unsigned long long i = first; i < quads; i += stride) {
            float4 quad = load(data + i);
            sum += quad.x + quad.y + quad.z + quad.w;
        }
    }
    if (sum < 0.0f)
        *sink = sum;
}

struct PastL1 {
    __device__ float4 operator()(const float4 *at) const { return __ldcg(at); }
};

struct NotToBeKept {
    __device__ float4 operator()(const float4 *at) const { return __ldcs(at); }
};

// Through the L2 cache: all it reads can be there from the launch before, so nothing must come from memory.
// pgpu.cost l2_sweep flop=4*arg1*arg2/threads l2_reads=16*arg1*arg2/threads l2_total_bytes=16*arg1 accesses=arg1*arg2/threads/16
extern "C" __global__ void l2_sweep(const float4 *data, unsigned long long quads, unsigned int sweeps, float *sink)
{
    sweep_over<16>(data, quads, sweeps, sink, PastL1());
}

// Through a buffer that no cache holds, marked as not to be kept, so that what it takes is the memory's time.
// pgpu.cost dram_stream flop=4*arg1*arg2/threads dram_bytes=16*arg1*arg2/threads accesses=arg1*arg2/threads/8
extern "C" __global__ void dram_stream(const float4 *data, unsigned long long quads, unsigned int sweeps, float *sink)
{
    sweep_over<8>(data, quads, sweeps, sink, NotToBeKept());
}
