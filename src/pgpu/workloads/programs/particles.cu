// A program that no cache matters to: every particle feels every other, and all that is read again is in shared memory.

#define BLOCK 256

// One block's particles against all, a tile of 256 at a time: what one step adds to each velocity. Three differences,
// their squares' sum, a root, a quotient and three multiply-adds are 20 operations for each pair, as it is usually counted.
// All particles are 16 bytes each; every block reads them all, four floats for each 256 pairs of a thread.
// pgpu.cost nbody flop=20*arg2 dram_bytes=32 l2_reads=arg2/16 l2_total_bytes=16*arg2 accesses=arg2/256
extern "C" __global__ void nbody(const float4 *particles, float4 *changes, int count)
{
    __shared__ float4 tile[BLOCK];
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    float4 mine = particles[index < count ? index : 0];
    float x = 0.0f, y = 0.0f, z = 0.0f;
    for (int first = 0; first < count; first += BLOCK) {
        int other = first + threadIdx.x;
        tile[threadIdx.x] = particles[other < count ? other : 0];
        if (other >= count)
            tile[threadIdx.x].w = 0.0f;
        __syncthreads();
#pragma unroll 8
        for (int i = 0; i < BLOCK; i++) {
            float across = tile[i].x - mine.x, along = tile[i].y - mine.y, up = tile[i].z - mine.z;
            float nearness = rsqrtf(across * across + along * along + up * up + 1.0f);
            float pull = tile[i].w * nearness * nearness * nearness;
            x += across * pull;
            y += along * pull;
            z += up * pull;
        }
        __syncthreads();
    }
    if (index < count)
        changes[index] = make_float4(x, y, z, 0.0f);
}
