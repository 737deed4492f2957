// Kernels that take from a multiprocessor itself, and leave caches and memory alone.

// Multiplies and adds in registers. Each thread has eight chains that do not wait for each other. `sink` is written
// never: all values stay between 0 and 2.
// pgpu.cost fma_chains flop=16*arg0
extern "C" __global__ void fma_chains(unsigned int rounds, float *sink)
{
    float value[8];
    for (int i = 0; i < 8; i++)
        value[i] = (float)(threadIdx.x + i) * 1e-4f;
    for (unsigned int round = 0; round < rounds; round++) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            value[i] = value[i] * 0.5f + 0.5f;
    }
    float sum = 0.0f;
    for (int i = 0; i < 8; i++)
        sum += value[i];
    if (sum < 0.0f)
        *sink = sum;
}

// Fills multiprocessors with threads that wait: one of each block looks at the GPU's clock, and the others stand before
// the barrier, where they take room and nothing else.
// pgpu.cost crowd argument=0 ns_per_unit=1
extern "C" __global__ void crowd(unsigned long long nanoseconds)
{
    if (threadIdx.x == 0) {
        unsigned long long start, now;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
        do {
            asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        } while (now - start < nanoseconds);
    }
    __syncthreads();
}
