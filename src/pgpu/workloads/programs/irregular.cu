// Stand-ins for Rodinia's data mining and graph programs, written from the definitions of the problems: what they read
// depends on the data.
//
// The notes for the simulated driver count what each thread reads, writes and computes.

// What both begin with: every word is `value` but one, which is `other`.
// pgpu.cost begin dram_bytes=4
extern "C" __global__ void begin(int *words, int count, int value, int other, int place)
{
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count)
        words[index] = index == place ? other : value;
}

// k-means, first half: each point, stored feature by feature, is given to the nearest centre. The point's
// features come from memory for the first centre and from L1 for the others; a warp's threads read the same centre.
// pgpu.cost assign flop=3*arg4*arg5 dram_bytes=4*arg4+4 l1_reads=4*arg4*arg5 l1_bytes=4*arg4 accesses=arg4*arg5/4
extern "C" __global__ void assign(const float *points, const float *centres, int *owners, int count, int features,
                                  int clusters)
{
    int point = blockIdx.x * blockDim.x + threadIdx.x;
    if (point >= count)
        return;
    int nearest = 0;
    float least = 3.0e38f;
    for (int cluster = 0; cluster < clusters; cluster++) {
        float distance = 0.0f;
        for (int feature = 0; feature < features; feature++) {
            float apart = points[(size_t)feature * count + point] - centres[cluster * features + feature];
            distance += apart * apart;
        }
        if (distance < least) {
            least = distance;
            nearest = cluster;
        }
    }
    owners[point] = nearest;
}

// Second half: sums of the points of each centre, and their number behind them. Sums of whole numbers are exact, in
// any order. An atomic addition is a sector at L2, for which no thread waits.
// pgpu.cost gather flop=arg4+1 dram_bytes=4*arg4+4 l2_reads=32*arg4+32 l2_total_bytes=4*arg4*arg5+4*arg5 accesses=1
extern "C" __global__ void gather(const float *points, const int *owners, float *sums, int count, int features,
                                  int clusters)
{
    int point = blockIdx.x * blockDim.x + threadIdx.x;
    if (point >= count)
        return;
    int owner = owners[point];
    for (int feature = 0; feature < features; feature++)
        atomicAdd(sums + owner * features + feature, points[(size_t)feature * count + point]);
    atomicAdd(sums + clusters * features + owner, 1.0f);
}

// Breadth-first search, one level: the nodes reached last reach those behind their edges. Every node has `degree`
// edges; nodes not reached yet have the level -1. That several nodes write the same level at once is harmless. All levels are read at
// every launch, each node's edges at one of about ten; a level is a sector of its own.
// pgpu.cost spread flop=1 dram_bytes=4+4*arg3/10 l2_reads=32*arg3/10 l2_total_bytes=4*arg2 accesses=2
extern "C" __global__ void spread(const int *edges, int *levels, int nodes, int degree, int level)
{
    int node = blockIdx.x * blockDim.x + threadIdx.x;
    if (node >= nodes || levels[node] != level)
        return;
    for (int edge = 0; edge < degree; edge++) {
        int reached = edges[(size_t)edge * nodes + node];
        if (levels[reached] < 0)
            levels[reached] = level + 1;
    }
}
