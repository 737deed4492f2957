"""What all GPUs of one compute capability have in common, as data. It refuses to know any product.

Sizes, lanes and limits: CUDA programming guide, tables of technical specifications and of arithmetic throughput, and
NVIDIA's tuning guides for the size of L1.

Latencies of L1, L2 and memory in SM clocks. Volta and Maxwell: Jia, Maggioni, Staiger, Scarpazza,
"Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking" (2018), whose Maxwell is an M60. Ampere to Hopper:
Luo, Fan, Li and others, "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking"
(arXiv 2402.13499, 2024). Blackwell's are Hopper's until we know better. docs/simulated-gpu.md says what they are for.
"""

from dataclasses import dataclass, replace

from pgpu.units import KIB


@dataclass(frozen=True, slots=True)
class ComputeCapability:
    """What all GPUs of one compute capability have in common."""

    major: int
    minor: int
    architecture: int
    """NVML's nvmlDeviceArchitecture_t: 3 Maxwell, 5 Volta, 7 Ampere, 8 Ada, 9 Hopper, 10 Blackwell."""

    threads_per_sm: int
    shared_bytes_per_sm: int
    """The most that an SM's blocks can have together."""

    unified_l1_bytes_per_sm: int
    """L1 and shared memory together; 0: shared memory is apart, and L1 does not cache loads from global memory unless a
    kernel is compiled for that."""

    fp32_lanes_per_sm: int
    """Multiply-adds of 32 bits that an SM finishes in a clock."""

    fp64_lanes_per_sm: int
    l1_latency_cycles: int
    l2_latency_cycles: int
    memory_latency_cycles: int


CC_5_2 = ComputeCapability(
    5,
    2,
    architecture=3,
    threads_per_sm=2048,
    shared_bytes_per_sm=96 * KIB,
    unified_l1_bytes_per_sm=0,
    fp32_lanes_per_sm=128,
    fp64_lanes_per_sm=4,
    l1_latency_cycles=82,
    l2_latency_cycles=207,
    memory_latency_cycles=368,
)
CC_7_0 = ComputeCapability(
    7,
    0,
    architecture=5,
    threads_per_sm=2048,
    shared_bytes_per_sm=96 * KIB,
    unified_l1_bytes_per_sm=128 * KIB,
    fp32_lanes_per_sm=64,
    fp64_lanes_per_sm=32,
    l1_latency_cycles=28,
    l2_latency_cycles=193,
    memory_latency_cycles=375,
)
CC_8_0 = ComputeCapability(
    8,
    0,
    architecture=7,
    threads_per_sm=2048,
    shared_bytes_per_sm=164 * KIB,
    unified_l1_bytes_per_sm=192 * KIB,
    fp32_lanes_per_sm=64,
    fp64_lanes_per_sm=32,
    l1_latency_cycles=38,
    l2_latency_cycles=262,
    memory_latency_cycles=466,
)
CC_8_6 = ComputeCapability(
    8,
    6,
    architecture=7,
    threads_per_sm=1536,
    shared_bytes_per_sm=100 * KIB,
    unified_l1_bytes_per_sm=128 * KIB,
    fp32_lanes_per_sm=128,
    fp64_lanes_per_sm=2,
    l1_latency_cycles=38,
    l2_latency_cycles=262,
    memory_latency_cycles=466,
)
CC_8_9 = replace(
    CC_8_6, minor=9, architecture=8, l1_latency_cycles=43, l2_latency_cycles=273, memory_latency_cycles=542
)
CC_9_0 = ComputeCapability(
    9,
    0,
    architecture=9,
    threads_per_sm=2048,
    shared_bytes_per_sm=228 * KIB,
    unified_l1_bytes_per_sm=256 * KIB,
    fp32_lanes_per_sm=128,
    fp64_lanes_per_sm=64,
    l1_latency_cycles=41,
    l2_latency_cycles=263,
    memory_latency_cycles=479,
)
CC_10_0 = replace(CC_9_0, major=10, architecture=10)
