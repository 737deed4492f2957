// Stand-ins for Rodinia's dynamic programming, written from the definitions of the problems: many short launches, each
// of which needs the one before.
//
// The notes for the simulated driver count what each thread reads and writes; whole-number operations count as arithmetic.

// The cheapest way down a wall of costs, one row: from a cell one may step down, or down and one to a side. The costs come from memory; the row
// above was written by the launch before and lies in L2.
// pgpu.cost pathfinder flop=4 dram_bytes=4 l1_reads=8 l1_bytes=4 l2_reads=8 l2_total_bytes=8*arg3 accesses=1
extern "C" __global__ void pathfinder(const int *costs, const int *above, int *next, int columns)
{
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns)
        return;
    int least = above[column];
    if (column > 0)
        least = min(least, above[column - 1]);
    if (column < columns - 1)
        least = min(least, above[column + 1]);
    next[column] = costs[column] + least;
}

// Needleman and Wunsch's alignment of two sequences, one anti-diagonal of the score matrix of (length + 1)^2. `first` is
// the row of the first of the `cells` that this launch fills; its column is diagonal - first. Letters are compared at
// once, a match counts 2, another letter -1. Cells of a diagonal lie in rows of
// their own: three neighbours are three sectors, in lines that the two diagonals before have touched.
// pgpu.cost align flop=8 dram_bytes=4 l2_reads=104 l2_bytes=256 accesses=1
extern "C" __global__ void align(const int *left, const int *right, int *scores, int length, int diagonal, int first,
                                 int cells, int gap)
{
    int cell = blockIdx.x * blockDim.x + threadIdx.x;
    if (cell >= cells)
        return;
    int row = first + cell, column = diagonal - row;
    int width = length + 1;
    int *mine = scores + (size_t)row * width + column;
    int matched = mine[-width - 1] + (left[row - 1] == right[column - 1] ? 2 : -1);
    mine[0] = max(matched, max(mine[-width], mine[-1]) - gap);
}
