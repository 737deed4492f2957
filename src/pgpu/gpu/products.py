"""GPU products as data, so that a machine without a GPU can simulate one. Every figure carries its source.

Sources named below:

* data sheet: NVIDIA's product data sheet or architecture white paper of that product: SMs, L2, bus, bandwidth, clocks,
  power.
* pci.ids: the PCI ID Repository (https://pci-ids.ucw.cz/) gives the device id.
* deviceQuery: output of NVIDIA's sample of that name on the product, published by its users: SMs, clocks, bus, L2, memory.
* NVML total and usable memory: what nvidia-smi and cuDeviceTotalMem print on such a card; the difference is what the
  driver reserves for itself, so usable = total - reserved. P1 and P3 give the usable memory of theirs.
* L2 bandwidth: 5,120 bytes a clock on A100, 2,048 on V100 (A100 white paper); where nothing is published, as many bytes
  a clock and SM as on the nearest of those two, which is an assumption.
* context: what one idle CUDA context holds. It moves with driver and loaded code, and no data sheet states it: P3 gives
  the GTX 980 Ti's (110 MiB a container less the program's 98), the others are typical of CUDA 12 drivers.
"""

from pgpu.gpu.mig_profiles import MigProfile
from pgpu.structs import Struct, replace
from pgpu.units import GIB, KIB, MIB


class ComputeCapability(Struct, frozen=True):
    """What all GPUs of one compute capability have in common."""

    major: int
    minor: int
    architecture: int
    """NVML's nvmlDeviceArchitecture_t: 3 Maxwell, 5 Volta, 6 Turing, 7 Ampere, 8 Ada, 9 Hopper, 10 Blackwell."""

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
CC_7_5 = replace(
    CC_7_0,
    minor=5,
    architecture=6,
    threads_per_sm=1024,
    shared_bytes_per_sm=64 * KIB,
    unified_l1_bytes_per_sm=96 * KIB,
    fp64_lanes_per_sm=2,
    l1_latency_cycles=32,
    l2_latency_cycles=188,
    memory_latency_cycles=296,
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
CC_12_0 = replace(CC_8_9, major=12, minor=0, architecture=10)  # latencies as Ada's, an assumption
CC_12_1 = replace(CC_12_0, minor=1)


_GB_PER_SECOND = 10**9


class GpuModel(Struct, frozen=True):
    """What the simulated driver must know of a product to stand in for it."""

    slug: str
    """How users write it, lower case with hyphens; also part of a state directory's name."""

    name: str
    """As NVML names the product."""

    total_bytes: int
    """As NVML reports it, the driver's own reserve included."""

    reserved_bytes: int
    """Never available to programs; 0 where NVML reports no memory."""

    context_bytes: int
    """Held by each CUDA context."""

    sm_count: int
    l2_bytes: int
    l2_bytes_per_clock: int
    """What all SMs together can read from L2 in an SM clock."""

    bandwidth_bytes_per_second: int
    memory_bus_bits: int
    sm_clock_mhz: int
    """Boost clock."""

    memory_clock_mhz: int
    capability: ComputeCapability
    power_limit_watts: int
    pcie_generation: int
    pci_device_id: int
    """The 16 bits behind NVIDIA's vendor id."""

    instances: tuple[MigProfile, ...] = ()
    """What MIG divides each GPU of it into; empty where MIG is off."""

    limits_cgroups: bool = False
    """Whether pgpu may have its simulated driver limit control groups, as NVIDIA's does since r615."""

    shares_host_memory: bool = False
    """Whether it has no memory of its own, so that NVML reports none."""

    @property
    def pcie_bytes_per_second(self) -> int:
        """What copies reach on 16 lanes: three quarters of the link's 8, 16, 32 … billion bits a second and lane.

        Within one memory half of its bandwidth, since a copy reads and writes.
        """
        if self.shares_host_memory:
            return self.bandwidth_bytes_per_second // 2
        return (12 * _GB_PER_SECOND) << (self.pcie_generation - 3)

    @property
    def l2_bytes_per_second(self) -> int:
        """What all SMs together can read from L2 at the boost clock."""
        return self.l2_bytes_per_clock * self.sm_clock_mhz * 10**6

    @property
    def fault_bytes_per_second(self) -> int:
        """What managed memory reaches that moves because a kernel touched it.

        Source: Sakharnykh, "Maximizing Unified Memory Performance in CUDA" (NVIDIA, 2017): on a P100 behind PCIe 3.0 5.4
        GB/s by faults and 11.4 GB/s by prefetching, 0.47 of it. Copies and prefetching reach `pcie_bytes_per_second`.
        """
        return self.pcie_bytes_per_second * 54 // 114

    @property
    def memory_bytes(self) -> int:
        """Memory that programs can use."""
        return self.total_bytes - self.reserved_bytes


_RTX_3090 = GpuModel(
    slug="rtx-3090",
    name="NVIDIA GeForce RTX 3090",
    total_bytes=24 * GIB,
    reserved_bytes=311 * MIB,  # P1: 24,265 MiB usable
    context_bytes=254 * MIB,  # typical
    sm_count=82,  # GA102 white paper, as the rest
    l2_bytes=6 * MIB,
    l2_bytes_per_clock=82 * 5120 // 108,  # as A100's for each SM
    bandwidth_bytes_per_second=936 * _GB_PER_SECOND,
    memory_bus_bits=384,
    sm_clock_mhz=1695,
    memory_clock_mhz=9751,
    capability=CC_8_6,
    power_limit_watts=350,
    pcie_generation=4,
    pci_device_id=0x2204,  # pci.ids
)

_GTX_980_TI = GpuModel(
    slug="gtx-980-ti",
    name="NVIDIA GeForce GTX 980 Ti",
    total_bytes=6 * GIB,
    reserved_bytes=384 * MIB,  # P3: 52 containers of 110 MiB fitted, more did not; 5,760 MiB lies between
    context_bytes=12 * MIB,  # P3: 52 containers of 98 MB held about 110 MiB each
    sm_count=22,  # data sheet, GM200
    l2_bytes=3 * MIB,
    l2_bytes_per_clock=22 * 2048 // 80,  # as V100's for each SM
    bandwidth_bytes_per_second=336_500_000_000,
    memory_bus_bits=384,
    sm_clock_mhz=1075,
    memory_clock_mhz=3505,
    capability=CC_5_2,
    power_limit_watts=250,
    pcie_generation=3,
    pci_device_id=0x17C8,  # pci.ids
)

_V100 = GpuModel(
    slug="v100",
    name="Tesla V100-SXM2-16GB",
    total_bytes=16 * GIB,
    reserved_bytes=224 * MIB,  # 16,160 MiB usable
    context_bytes=306 * MIB,  # typical
    sm_count=80,  # GV100 white paper, as the rest
    l2_bytes=6 * MIB,
    l2_bytes_per_clock=2048,  # A100 white paper
    bandwidth_bytes_per_second=900 * _GB_PER_SECOND,
    memory_bus_bits=4096,
    sm_clock_mhz=1530,
    memory_clock_mhz=877,
    capability=CC_7_0,
    power_limit_watts=300,
    pcie_generation=3,
    pci_device_id=0x1DB1,  # pci.ids
)

_A100_40 = GpuModel(
    slug="a100-40",
    name="NVIDIA A100-SXM4-40GB",
    total_bytes=40 * GIB,
    reserved_bytes=624 * MIB,  # cuDeviceTotalMem 39.39 GiB
    context_bytes=412 * MIB,  # typical
    sm_count=108,  # A100 data sheet and white paper, as the rest
    l2_bytes=40 * MIB,
    l2_bytes_per_clock=5120,  # A100 white paper
    bandwidth_bytes_per_second=1555 * _GB_PER_SECOND,
    memory_bus_bits=5120,
    sm_clock_mhz=1410,
    memory_clock_mhz=1215,
    capability=CC_8_0,
    power_limit_watts=400,
    pcie_generation=4,
    pci_device_id=0x20B0,  # pci.ids
)

_A100_80 = replace(
    _A100_40,
    slug="a100-80",
    name="NVIDIA A100-SXM4-80GB",
    total_bytes=80 * GIB,
    reserved_bytes=870 * MIB,  # cuDeviceTotalMem 79.15 GiB
    bandwidth_bytes_per_second=2039 * _GB_PER_SECOND,
    memory_clock_mhz=1593,
    pci_device_id=0x20B2,  # pci.ids
)

_L4 = GpuModel(
    slug="l4",
    name="NVIDIA L4",
    total_bytes=23_034 * MIB,  # ECC takes a sixteenth of GDDR6
    reserved_bytes=475 * MIB,  # cuDeviceTotalMem 22.03 GiB
    context_bytes=254 * MIB,  # typical
    sm_count=58,  # L4 data sheet, AD104, as the rest
    l2_bytes=48 * MIB,
    l2_bytes_per_clock=58 * 5120 // 108,  # as A100's for each SM
    bandwidth_bytes_per_second=300 * _GB_PER_SECOND,
    memory_bus_bits=192,
    sm_clock_mhz=2040,
    memory_clock_mhz=6251,
    capability=CC_8_9,
    power_limit_watts=72,
    pcie_generation=4,
    pci_device_id=0x27B8,  # pci.ids
)

_L40S = GpuModel(
    slug="l40s",
    name="NVIDIA L40S",
    total_bytes=46_068 * MIB,  # ECC takes a sixteenth of GDDR6
    reserved_bytes=602 * MIB,  # cuDeviceTotalMem 44.40 GiB
    context_bytes=356 * MIB,  # typical
    sm_count=142,  # L40S data sheet, AD102, as the rest
    l2_bytes=96 * MIB,
    l2_bytes_per_clock=142 * 5120 // 108,  # as A100's for each SM
    bandwidth_bytes_per_second=864 * _GB_PER_SECOND,
    memory_bus_bits=384,
    sm_clock_mhz=2520,
    memory_clock_mhz=9001,
    capability=CC_8_9,
    power_limit_watts=350,
    pcie_generation=4,
    pci_device_id=0x26B9,  # pci.ids
)

_H100 = GpuModel(
    slug="h100",
    name="NVIDIA H100 80GB HBM3",
    total_bytes=81_559 * MIB,
    reserved_bytes=551 * MIB,  # cuDeviceTotalMem 79.11 GiB
    context_bytes=520 * MIB,  # typical
    sm_count=132,  # H100 SXM data sheet and white paper, as the rest
    l2_bytes=50 * MIB,
    l2_bytes_per_clock=132 * 5120 // 108,  # as A100's for each SM
    bandwidth_bytes_per_second=3350 * _GB_PER_SECOND,
    memory_bus_bits=5120,
    sm_clock_mhz=1980,
    memory_clock_mhz=2619,
    capability=CC_9_0,
    power_limit_watts=700,
    pcie_generation=5,
    pci_device_id=0x2330,  # pci.ids
)

_H200 = replace(
    _H100,
    slug="h200",
    name="NVIDIA H200",
    total_bytes=143_771 * MIB,
    reserved_bytes=612 * MIB,  # cuDeviceTotalMem 139.80 GiB
    bandwidth_bytes_per_second=4800 * _GB_PER_SECOND,
    memory_bus_bits=6144,
    memory_clock_mhz=3201,
    pci_device_id=0x2335,  # pci.ids
)

_B200 = GpuModel(
    slug="b200",
    name="NVIDIA B200",
    total_bytes=183_359 * MIB,
    reserved_bytes=729 * MIB,  # cuDeviceTotalMem 178.35 GiB
    context_bytes=660 * MIB,  # typical
    sm_count=148,  # HGX B200 data sheet and Blackwell tuning guide, as the rest
    l2_bytes=129_536 * KIB,  # 126.5 MiB
    l2_bytes_per_clock=148 * 5120 // 108,  # as A100's for each SM
    bandwidth_bytes_per_second=7700 * _GB_PER_SECOND,
    memory_bus_bits=8192,
    sm_clock_mhz=1965,
    memory_clock_mhz=3996,
    capability=CC_10_0,
    power_limit_watts=1000,
    pcie_generation=6,
    pci_device_id=0x2901,  # pci.ids
)

_RTX_4090 = GpuModel(
    slug="rtx-4090",
    name="NVIDIA GeForce RTX 4090",
    total_bytes=24_564 * MIB,
    reserved_bytes=483 * MIB,  # cuDeviceTotalMem 24,081 MiB under CUDA 13.0
    context_bytes=382 * MIB,  # typical
    sm_count=128,  # deviceQuery and Ada white paper, AD102, as the rest
    l2_bytes=72 * MIB,
    l2_bytes_per_clock=128 * 5120 // 108,  # as A100's for each SM
    bandwidth_bytes_per_second=1008 * _GB_PER_SECOND,
    memory_bus_bits=384,
    sm_clock_mhz=2520,
    memory_clock_mhz=10_501,
    capability=CC_8_9,
    power_limit_watts=450,
    pcie_generation=4,
    pci_device_id=0x2684,  # pci.ids
)

_RTX_5090 = GpuModel(
    slug="rtx-5090",
    name="NVIDIA GeForce RTX 5090",
    total_bytes=32_607 * MIB,
    reserved_bytes=498 * MIB,  # cuDeviceTotalMem 32,109 MiB under CUDA 13.0
    context_bytes=510 * MIB,  # typical
    sm_count=170,  # deviceQuery and RTX Blackwell white paper, GB202, as the rest
    l2_bytes=96 * MIB,
    l2_bytes_per_clock=170 * 5120 // 108,  # as A100's for each SM
    bandwidth_bytes_per_second=1792 * _GB_PER_SECOND,
    memory_bus_bits=512,
    sm_clock_mhz=2407,
    memory_clock_mhz=14_001,
    capability=CC_12_0,
    power_limit_watts=575,
    pcie_generation=5,
    pci_device_id=0x2B85,  # pci.ids
)

_RTX_A6000 = GpuModel(
    slug="a6000",
    name="NVIDIA RTX A6000",
    total_bytes=49_140 * MIB,
    reserved_bytes=350 * MIB,  # cuDeviceTotalMem 48,790 MiB under CUDA 12.7
    context_bytes=262 * MIB,  # typical
    sm_count=84,  # deviceQuery and RTX A6000 data sheet, GA102, as the rest
    l2_bytes=6 * MIB,
    l2_bytes_per_clock=84 * 5120 // 108,  # as A100's for each SM
    bandwidth_bytes_per_second=768 * _GB_PER_SECOND,
    memory_bus_bits=384,
    sm_clock_mhz=1800,
    memory_clock_mhz=8001,
    capability=CC_8_6,
    power_limit_watts=300,
    pcie_generation=4,
    pci_device_id=0x2230,  # pci.ids
)

_A10 = GpuModel(
    slug="a10",
    name="NVIDIA A10",
    total_bytes=23_028 * MIB,  # ECC takes a sixteenth of GDDR6
    reserved_bytes=429 * MIB,  # cuDeviceTotalMem 22,599 MiB under CUDA 12.8
    context_bytes=258 * MIB,  # typical
    sm_count=72,  # deviceQuery and A10 data sheet, GA102, as the rest
    l2_bytes=6 * MIB,
    l2_bytes_per_clock=72 * 5120 // 108,  # as A100's for each SM
    bandwidth_bytes_per_second=600 * _GB_PER_SECOND,
    memory_bus_bits=384,
    sm_clock_mhz=1695,
    memory_clock_mhz=6251,
    capability=CC_8_6,
    power_limit_watts=150,
    pcie_generation=4,
    pci_device_id=0x2236,  # pci.ids
)

_T4 = GpuModel(
    slug="t4",
    name="Tesla T4",
    total_bytes=15 * GIB,  # ECC takes a sixteenth of GDDR6
    reserved_bytes=265 * MIB,  # cuDeviceTotalMem 15,095 MiB
    context_bytes=102 * MIB,  # typical
    sm_count=40,  # deviceQuery and T4 data sheet, TU104, as the rest
    l2_bytes=4 * MIB,
    l2_bytes_per_clock=40 * 2048 // 80,  # as V100's for each SM
    bandwidth_bytes_per_second=320 * _GB_PER_SECOND,
    memory_bus_bits=256,
    sm_clock_mhz=1590,
    memory_clock_mhz=5001,
    capability=CC_7_5,
    power_limit_watts=70,
    pcie_generation=3,
    pci_device_id=0x1EB8,  # pci.ids
)

_GB200 = replace(
    _B200,
    slug="gb200",
    name="NVIDIA GB200",
    total_bytes=189_471 * MIB,
    reserved_bytes=738 * MIB,  # cuDeviceTotalMem 184.31 GiB
    sm_count=152,  # as its users' programs print
    l2_bytes_per_clock=152 * 5120 // 108,  # as A100's for each SM
    bandwidth_bytes_per_second=8000 * _GB_PER_SECOND,  # GB200 NVL72 data sheet: 576 TB/s of 72
    sm_clock_mhz=2062,  # NVML's maximum
    power_limit_watts=1200,
    pci_device_id=0x2941,  # pci.ids
)  # copies cross NVLink-C2C, which is faster than its bus; the bus is what is simulated

_GB10 = GpuModel(
    slug="gb10",
    name="NVIDIA GB10",
    total_bytes=130_602_405_888,  # cuDeviceTotalMem of a DGX Spark, about MemTotal of its 128 GB
    reserved_bytes=0,
    context_bytes=200 * MIB,  # typical
    sm_count=48,  # deviceQuery and DGX Spark data sheet, as the rest
    l2_bytes=24 * MIB,
    l2_bytes_per_clock=48 * 5120 // 108,  # as A100's for each SM
    bandwidth_bytes_per_second=273 * _GB_PER_SECOND,
    memory_bus_bits=256,
    sm_clock_mhz=2418,
    memory_clock_mhz=4266,  # LPDDR5X at 8,533 MT/s
    capability=CC_12_1,
    power_limit_watts=140,  # of the whole chip
    pcie_generation=1,  # lspci: 2.5 GT/s
    pci_device_id=0x2E12,  # pci.ids
    shares_host_memory=True,
)

# Every model that can be simulated.
MODELS: tuple[GpuModel, ...] = (
    _RTX_3090,
    _GTX_980_TI,
    _V100,
    _A100_40,
    _A100_80,
    _L4,
    _L40S,
    _H100,
    _H200,
    _B200,
    _RTX_4090,
    _RTX_5090,
    _RTX_A6000,
    _A10,
    _T4,
    _GB200,
    _GB10,
)
