// Stand-ins for Rodinia's structured grids, written from the definitions of the problems. One thread for each cell;
// cells along a row lie beside each other. A neighbour outside the grid has the value of the cell itself.
//
// The notes for the simulated driver count what each thread reads, writes and computes. A cell's own value comes from
// memory once; its neighbours along the row lie in lines that the block has in L1, the others were read by other blocks,
// and L2 still has them if it holds all that passed since: rows or planes, of every array. A division counts 16 operations.

// One step of heat diffusion on a chip: the four neighbours, and the power that the cell turns to heat.
// pgpu.cost hotspot flop=9 dram_bytes=12 l1_reads=8 l1_bytes=4 l2_reads=8 l2_total_bytes=24*arg4 accesses=1
extern "C" __global__ void hotspot(const float *heat, const float *power, float *next, int rows, int columns,
                                   float flow, float gain)
{
    int cell = blockIdx.x * blockDim.x + threadIdx.x;
    if (cell >= rows * columns)
        return;
    int row = cell / columns, column = cell % columns;
    float mine = heat[cell];
    float north = row > 0 ? heat[cell - columns] : mine;
    float south = row < rows - 1 ? heat[cell + columns] : mine;
    float west = column > 0 ? heat[cell - 1] : mine;
    float east = column < columns - 1 ? heat[cell + 1] : mine;
    next[cell] = mine + flow * (north + south + west + east - 4.0f * mine) + gain * power[cell];
}

// The same in a stack of layers: six neighbours.
// pgpu.cost hotspot3d flop=11 dram_bytes=12 l1_reads=8 l1_bytes=4 l2_reads=16 l2_total_bytes=24*arg4*arg5 accesses=1
extern "C" __global__ void hotspot3d(const float *heat, const float *power, float *next, int layers, int rows,
                                     int columns, float flow, float gain)
{
    int cell = blockIdx.x * blockDim.x + threadIdx.x;
    int plane = rows * columns;
    if (cell >= layers * plane)
        return;
    int layer = cell / plane, row = cell / columns % rows, column = cell % columns;
    float mine = heat[cell];
    float above = layer > 0 ? heat[cell - plane] : mine;
    float below = layer < layers - 1 ? heat[cell + plane] : mine;
    float north = row > 0 ? heat[cell - columns] : mine;
    float south = row < rows - 1 ? heat[cell + columns] : mine;
    float west = column > 0 ? heat[cell - 1] : mine;
    float east = column < columns - 1 ? heat[cell + 1] : mine;
    next[cell] =
        mine + flow * (above + below + north + south + west + east - 6.0f * mine) + gain * power[cell];
}

// Speckle reducing anisotropic diffusion, first half: how freely intensity flows from each pixel, between 0 and 1.
// Source: Yu and Acton, "Speckle reducing anisotropic diffusion", 2002, equations 31, 33 and 35, with a fixed q0.
// pgpu.cost srad_flow flop=107 dram_bytes=8 l1_reads=8 l1_bytes=4 l2_reads=8 l2_total_bytes=16*arg3 accesses=1
extern "C" __global__ void srad_flow(const float *image, float *flow, int rows, int columns, float q0_squared)
{
    int pixel = blockIdx.x * blockDim.x + threadIdx.x;
    if (pixel >= rows * columns)
        return;
    int row = pixel / columns, column = pixel % columns;
    float mine = image[pixel];
    float north = (row > 0 ? image[pixel - columns] : mine) - mine;
    float south = (row < rows - 1 ? image[pixel + columns] : mine) - mine;
    float west = (column > 0 ? image[pixel - 1] : mine) - mine;
    float east = (column < columns - 1 ? image[pixel + 1] : mine) - mine;
    float gradient = (north * north + south * south + west * west + east * east) / (mine * mine);
    float laplacian = (north + south + west + east) / mine;
    float stretch = 1.0f + 0.25f * laplacian;
    float q_squared = (0.5f * gradient - 0.0625f * laplacian * laplacian) / (stretch * stretch);
    float answer = 1.0f / (1.0f + (q_squared - q0_squared) / (q0_squared * (1.0f + q0_squared)));
    flow[pixel] = fminf(fmaxf(answer, 0.0f), 1.0f);
}

// Second half: the image moves along what may flow. Source: the same, equations 56 to 58.
// pgpu.cost srad_move flop=14 dram_bytes=12 l1_reads=12 l1_bytes=8 l2_reads=12 l2_total_bytes=24*arg4 accesses=1
extern "C" __global__ void srad_move(const float *image, const float *flow, float *next, int rows, int columns,
                                     float rate)
{
    int pixel = blockIdx.x * blockDim.x + threadIdx.x;
    if (pixel >= rows * columns)
        return;
    int row = pixel / columns, column = pixel % columns;
    float mine = image[pixel], here = flow[pixel];
    int south = row < rows - 1 ? pixel + columns : pixel, east = column < columns - 1 ? pixel + 1 : pixel;
    float north_value = row > 0 ? image[pixel - columns] : mine;
    float west_value = column > 0 ? image[pixel - 1] : mine;
    float divergence = flow[south] * (image[south] - mine) + flow[east] * (image[east] - mine) +
                       here * (north_value - mine) + here * (west_value - mine);
    next[pixel] = mine + 0.25f * rate * divergence;
}
