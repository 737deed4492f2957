"""Measurements of ended runs: profiles of GPU use, on which advice is based, and the history of memory and durations."""

from enum import StrEnum

from pgpu.model.lease import SharingMode
from pgpu.structs import Struct


class Resource(StrEnum):
    """A resource of a GPU that kernels compete for."""

    SM = "sm"
    TENSOR = "tensor"
    FP32 = "fp32"
    FP64 = "fp64"
    L2 = "l2"
    """L2 cache bandwidth."""

    DRAM = "dram"
    PCIE = "pcie"


class Evidence(StrEnum):
    """Source of a measured figure, the most trustworthy last."""

    LAUNCHES = "launches"
    """The shim's log of launches, grids and durations."""

    ANTAGONIST = "antagonist"
    """Run times beside kernels that exhaust one resource."""

    GPM = "gpm"
    """NVML's GPU performance metrics, from Hopper on."""

    COUNTERS = "counters"
    """Nsight Compute's hardware counters."""


class Demand(Struct, frozen=True):
    """Use of one resource while a kernel of the job runs."""

    resource: Resource
    fraction: float
    """0 to 1 of what the GPU has."""

    evidence: Evidence


class Sensitivity(Struct, frozen=True):
    """Slowdown of a job when a resource is exhausted by others: 0.25 is a quarter longer. None if not measured."""

    cache: float | None = None
    """With the smallest L1 carve-out instead of the largest. Source: P3's cache-sensitive programs."""

    l2: float | None = None
    """Beside a kernel on a tenth of the multiprocessors that sweeps as much as the L2 cache holds."""

    dram: float | None = None
    """Beside a kernel on a tenth of the multiprocessors that streams device memory."""

    evidence: Evidence = Evidence.ANTAGONIST


class Antagonist(StrEnum):
    """The resource that a kernel beside the job exhausts."""

    L2 = "l2"
    """It sweeps a buffer of the size of the L2 cache or less in a loop."""

    DRAM = "dram"
    """It streams far more memory than any cache holds."""

    COMPUTE = "compute"
    """It computes in registers, on every multiprocessor."""

    L2_BANDWIDTH = "l2-bandwidth"
    """It sweeps a small part of the L2 cache from all multiprocessors at full speed."""

    ROOM = "room"
    """Its threads wait, as many on every multiprocessor as it holds."""


class Contest(Struct, frozen=True):
    """The job and an antagonist beside each other under MPS: the slowdown of each.

    The slowdown of the antagonist measures the pressure of the job on others without hardware counters.

    Source: Mars et al., Bubble-Up (MICRO 2011): a program's sensitivity and its pressure, each measured once.
    """

    antagonist: Antagonist
    swept_bytes: int
    """The antagonist's buffer; 0 if it has none."""

    sm_fraction: float
    """Share of the multiprocessors that the antagonist had; above 0 to 1."""

    slowdown: float
    """Of the job's kernels against alone: 1.25 is a quarter longer."""

    antagonist_slowdown: float
    """Of the antagonist against alone, while a kernel of the job ran."""

    antagonist_fraction: float | None = None
    """What the antagonist alone used of its resource, 0 to 1 of what the GPU has: its buffer of the L2 cache, its bytes per second of
    the memory bandwidth, or its multiprocessors; None if unknown."""

    antagonist_rate: float | None = None
    """What it alone read or wrote per second, relative to the memory bandwidth; for an `L2` antagonist what would come from memory
    without the cache; None if unknown."""


class KernelUse(Struct, frozen=True):
    """All launches of one kernel with one shape."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    launches: int
    total_ns: int
    shortest_ns: int
    longest_ns: int


class CopyUse(Struct, frozen=True):
    """All copies of one direction: `HtoD`, `DtoH`, `DtoD` or `PtoP`."""

    direction: str
    copies: int
    total_bytes: int
    total_ns: int


class Profile(Struct, frozen=True):
    """One measured run. Fractions are of the time between its first and its last use of the GPU."""

    signature: str
    gpu_name: str
    owner_uid: int
    measured_at_seconds: float
    """Seconds since the epoch."""

    duration_seconds: float
    peak_bytes: int
    """Per GPU, contexts included."""

    context_bytes: int
    busy_fraction: float
    """0 to 1: how much of the time a kernel ran (d in docs of the advice)."""

    demands: tuple[Demand, ...] = ()
    """While a kernel runs; missing resources are unknown."""

    footprint_bytes: int | None = None
    """Memory touched in a millisecond, at most the size of the L2 cache; None if not measured."""

    gpu_l2_bytes: int | None = None
    """Size of the L2 cache of the GPU it was measured on; None if unknown."""

    gpu_sm_count: int | None = None
    sensitivity: Sensitivity = Sensitivity()
    contests: tuple[Contest, ...] = ()
    """As measured: several sizes of the L2 antagonist show how much cache the job needs."""

    kernels: tuple[KernelUse, ...] = ()
    """By decreasing total time; at most a hundred."""

    copies: tuple[CopyUse, ...] = ()
    is_simulated: bool = False

    def demand_of(self, resource: Resource) -> float | None:
        """Return the fraction of a resource that it uses while it runs; None if unknown."""
        return next((demand.fraction for demand in self.demands if demand.resource is resource), None)


class Run(Struct, frozen=True):
    """One run in the history of its program."""

    signature: str
    """Of the program; see `Job.signature`."""

    gpu_name: str
    """Product name of its GPU: peaks and durations differ between models."""

    job_id: str
    owner_uid: int
    slice_bytes: int
    """Per GPU, the largest that it had."""

    peak_bytes: int
    """Most that any one of its slices held, context included."""

    context_bytes: int
    """Of one CUDA context on its GPU; 0 if unknown."""

    refusals: int
    """Allocations that its own limit refused."""

    duration_seconds: float
    """From start to end."""

    ended_at_seconds: float
    """Seconds since the epoch."""

    exit_code: int | None
    """None if its end was not observed."""

    refused_at_bytes: int = 0
    """Slice at the last refused allocation; 0 if none was refused, or unknown."""

    compute_share: float | None = None
    """Of each GPU's time, at its end; None if it asked for none."""

    sharing: SharingMode = SharingMode.TIME_SLICE
    """Sharing mode of its GPUs."""

    demand: float | None = None
    """Share of its only GPU's time that it needed, 0 to 1, on average over the run; None if it was not measured."""

    attempted_bytes: int = 0
    """Most that a slice would have held with a refused allocation; 0 if none was refused, or unknown."""

    sizes_itself: bool = False
    """Whether it took half or more of the memory that it was shown before it held any: its peak is what it saw, not what it needs."""
