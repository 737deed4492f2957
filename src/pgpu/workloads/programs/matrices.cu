// Stand-ins for PolyBench's linear algebra, written from the definitions of the problems: products of a dense matrix,
// which is stored row by row, with a vector or a matrix.
//
// The notes for the simulated driver count what each thread reads, writes and computes, from the source below.

// result = matrix * vector, one thread for each row. Each thread walks along its own row, so a warp touches 32 lines at
// a time and comes back to each for the next 31 columns: it is fast only while the caches keep one line for each
// resident thread. Every float of the row must come from memory once. A read moves a sector of 32 bytes, eight floats, and
// seven of eight reads ask for a sector again: 7/8 of 32 bytes a column. PolyBench adds each product to the result in memory,
// so each column is waited for; a loop that is not unrolled waits likewise. The vector is left out: a warp's threads read
// the same word, a byte for each thread.
// pgpu.cost matvec flop=2*arg4 dram_bytes=4*arg4+4 l1_reads=28*arg4 l1_bytes=128 accesses=arg4
extern "C" __global__ void matvec(const float *matrix, const float *vector, float *result, int rows, int columns)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows)
        return;
    const float *mine = matrix + (size_t)row * columns;
    float sum = 0.0f;
#pragma unroll 1
    for (int column = 0; column < columns; column++)
        sum += mine[column] * vector[column];
    result[row] = sum;
}

// result = transposed matrix * vector, one thread for each column. A warp reads one line whole and never again, so no
// cache matters to it but the memory's speed. The vector is left out, as above, and
// each row is waited for.
// pgpu.cost matvec_t flop=2*arg3 dram_bytes=4*arg3+4 accesses=arg3
extern "C" __global__ void matvec_t(const float *matrix, const float *vector, float *result, int rows, int columns)
{
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns)
        return;
    float sum = 0.0f;
#pragma unroll 1
    for (int row = 0; row < rows; row++)
        sum += matrix[(size_t)row * columns + column] * vector[row];
    result[column] = sum;
}

#define TILE   64
#define DEPTH  16
#define WIDTH  16
#define SQUARE 4

// product = left * right by tiles of 64 x 64, blocks of 256 threads, 4 x 4 elements for each thread, spread over the tile so
// that neighbours read neighbours. For every 16 of `inner` a block moves 64 x 16 of each matrix into shared memory, four
// floats of each for a thread, and a thread does 16 multiply-adds with each pair of fours: arithmetic is what it waits for.
// Other blocks read the same, so L2 serves all but the first reader, and each row of tiles passes over the whole right
// matrix.
// pgpu.cost gemm flop=32*arg4 dram_bytes=64+64*arg4/arg5+64*arg4/arg3 l2_reads=2*arg4 l2_total_bytes=4*arg4*arg5 accesses=arg4/16
extern "C" __global__ void gemm(const float *left, const float *right, float *product, int rows, int inner,
                                int columns)
{
    __shared__ float left_tile[DEPTH][TILE + 1], right_tile[DEPTH][TILE];
    int tiles_across = (columns + TILE - 1) / TILE;
    int first_row = blockIdx.x / tiles_across * TILE, first_column = blockIdx.x % tiles_across * TILE;
    int x = threadIdx.x % WIDTH, y = threadIdx.x / WIDTH;
    float sum[SQUARE][SQUARE] = {};
    for (int first = 0; first < inner; first += DEPTH) {
        for (int part = 0; part < SQUARE; part++) {
            int row = first_row + y + part * WIDTH, column = first_column + x + part * WIDTH;
            left_tile[x][y + part * WIDTH] =
                row < rows && first + x < inner ? left[(size_t)row * inner + first + x] : 0.0f;
            right_tile[y][x + part * WIDTH] =
                first + y < inner && column < columns ? right[(size_t)(first + y) * columns + column] : 0.0f;
        }
        __syncthreads();
        for (int i = 0; i < DEPTH; i++)
            for (int down = 0; down < SQUARE; down++)
                for (int across = 0; across < SQUARE; across++)
                    sum[down][across] += left_tile[i][y + down * WIDTH] * right_tile[i][x + across * WIDTH];
        __syncthreads();
    }
    for (int down = 0; down < SQUARE; down++)
        for (int across = 0; across < SQUARE; across++) {
            int row = first_row + y + down * WIDTH, column = first_column + x + across * WIDTH;
            if (row < rows && column < columns)
                product[(size_t)row * columns + column] = sum[down][across];
        }
}
