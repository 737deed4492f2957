// The workloads' kernels. They compute what they claim on any GPU from Maxwell on; on the simulated driver they take
// modelled time and compute nothing. kernels.ptx beside this file is made from it by tools/compile_workload_kernels.py,
// which keeps the simulated driver's notes on time:
// pgpu.cost * fixed_ns=10000 wave_ns=10000
// pgpu.cost fill dram_bytes=4
// pgpu.cost spin fixed_ns=2000 wave_ns=0 argument=0 ns_per_unit=1

// Writes one word: shows whether kernels compute here.
extern "C" __global__ void probe(unsigned int *word, unsigned int value)
{
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *word = value;
}

// Whole numbers from `least` on, `several` different ones, that look drawn by lot and are the same every time. Of float
// or of int, by `is_float`.
extern "C" __global__ void fill(unsigned int *values, unsigned long long count, unsigned int seed,
                                unsigned int several, int least, int is_float)
{
    unsigned long long index = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count)
        return;
    unsigned int mixed = ((unsigned int)index + seed) * 2654435761u;
    mixed = (mixed ^ (mixed >> 15)) * 2246822519u;
    int value = (int)((mixed ^ (mixed >> 13)) % several) + least;
    values[index] = is_float ? __float_as_uint((float)value) : (unsigned int)value;
}

// A dense layer: outputs[row][column] = sum over i of inputs[row][i] * weights[i][column]. One thread per output.
extern "C" __global__ void dense(const float *inputs, const float *weights, float *outputs, int rows, int inner,
                                 int columns)
{
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= rows * columns)
        return;
    int row = index / columns;
    int column = index % columns;
    float sum = 0.0f;
    for (int i = 0; i < inner; i++)
        sum += inputs[row * inner + i] * weights[i * columns + column];
    outputs[index] = sum;
}

// Turns each row of logits into softmax minus one-hot label, and writes its cross-entropy. One thread per row.
extern "C" __global__ void softmax_error(const float *logits, const int *labels, float *errors, float *losses, int rows,
                                         int columns)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows)
        return;
    const float *mine = logits + row * columns;
    float largest = mine[0];
    for (int column = 1; column < columns; column++)
        largest = fmaxf(largest, mine[column]);
    float sum = 0.0f;
    for (int column = 0; column < columns; column++)
        sum += __expf(mine[column] - largest);
    for (int column = 0; column < columns; column++)
        errors[row * columns + column] =
            __expf(mine[column] - largest) / sum - (column == labels[row] ? 1.0f : 0.0f);
    losses[row] = __logf(sum) - (mine[labels[row]] - largest);
}

// One step of gradient descent on the dense layer's weights. One thread per weight.
extern "C" __global__ void descend(const float *inputs, const float *errors, float *weights, float rate, int rows,
                                   int inner, int columns)
{
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= inner * columns)
        return;
    int i = index / columns;
    int column = index % columns;
    float gradient = 0.0f;
    for (int row = 0; row < rows; row++)
        gradient += inputs[row * inner + i] * errors[row * columns + column];
    weights[index] -= rate * gradient / rows;
}

// Keeps the GPU busy for a time, read from the GPU's own clock, and writes how long it really took.
extern "C" __global__ void spin(unsigned long long nanoseconds, unsigned long long *elapsed)
{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *elapsed = now - start;
}
