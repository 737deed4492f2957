"""What was measured of a job that ran alone: what the advice rests on."""

from dataclasses import dataclass
from enum import StrEnum

from pgpu.model.request import SharingMode


class Resource(StrEnum):
    """What a kernel can use up of a GPU."""

    SM = "sm"
    TENSOR = "tensor"
    FP32 = "fp32"
    FP64 = "fp64"
    L2 = "l2"
    """The bandwidth of the L2 cache."""

    DRAM = "dram"
    PCIE = "pcie"


class Evidence(StrEnum):
    """What a figure was measured with, the most trustworthy last."""

    LAUNCHES = "launches"
    """The shim's own record of launches, grids and durations."""

    ANTAGONIST = "antagonist"
    """Run times beside kernels that use up one resource."""

    GPM = "gpm"
    """NVML's GPU performance metrics, from Hopper on."""

    COUNTERS = "counters"
    """Nsight Compute's hardware counters."""


@dataclass(frozen=True, slots=True)
class Demand:
    """How much of one resource a job uses while a kernel of it runs."""

    resource: Resource
    fraction: float
    """0 to 1 of what the GPU has."""

    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How much slower a job is where others use up what it needs: 0.25 is a quarter longer. None was not measured."""

    cache: float | None = None
    """With the smallest L1 carve-out instead of the largest. Source: P3's cache-sensitive programs."""

    l2: float | None = None
    """Beside a kernel on a tenth of the multiprocessors that sweeps as much as the L2 cache holds."""

    dram: float | None = None
    """Beside a kernel on a tenth of the multiprocessors that streams device memory."""

    evidence: Evidence = Evidence.ANTAGONIST


class Antagonist(StrEnum):
    """What a kernel beside the job uses up."""

    L2 = "l2"
    """It sweeps a buffer again and again that the L2 cache could hold."""

    DRAM = "dram"
    """It streams far more memory than any cache holds."""

    COMPUTE = "compute"
    """It does arithmetic in registers, on every multiprocessor."""

    L2_BANDWIDTH = "l2-bandwidth"
    """It sweeps a small part of the L2 cache from all multiprocessors, as fast as that goes."""

    ROOM = "room"
    """Its threads wait, and there are as many of them on every multiprocessor as it holds."""


@dataclass(frozen=True, slots=True)
class Contest:
    """The job and an antagonist beside each other, under MPS: who slowed whom, and by how much.

    What the antagonist loses tells how hard the job presses on others, without any counter.

    Source: Mars et al., Bubble-Up (MICRO 2011): a program's sensitivity and its pressure, each measured once.
    """

    antagonist: Antagonist
    swept_bytes: int
    """The antagonist's buffer; 0 where it has none."""

    sm_fraction: float
    """Of the multiprocessors that the antagonist had; above 0 to 1."""

    slowdown: float
    """Of the job's kernels against alone: 1.25 is a quarter longer."""

    antagonist_slowdown: float
    """Of the antagonist against alone, while a kernel of the job ran."""

    antagonist_fraction: float | None = None
    """What the antagonist alone used of the resource it is named for, 0 to 1 of what the GPU has: its L2 buffer of the
    cache, its bytes a second of the memory's bandwidth, its multiprocessors; None is not known."""

    antagonist_rate: float | None = None
    """What it alone read or wrote in a second, of what the memory moves in one: of an `L2` antagonist what would come from the
    memory if the cache held nothing; None is not known."""


@dataclass(frozen=True, slots=True)
class KernelUse:
    """All launches of one kernel with one shape."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    launches: int
    total_ns: int
    shortest_ns: int
    longest_ns: int


@dataclass(frozen=True, slots=True)
class CopyUse:
    """All copies of one direction: `HtoD`, `DtoH`, `DtoD` or `PtoP`."""

    direction: str
    copies: int
    total_bytes: int
    total_ns: int


@dataclass(frozen=True, slots=True)
class Profile:
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
    """While a kernel runs; a resource that is not named is not known."""

    footprint_bytes: int | None = None
    """What it touches in a millisecond, at most the L2 cache; None was not measured."""

    gpu_l2_bytes: int | None = None
    """The L2 cache of the GPU that it was measured on; None was not asked."""

    gpu_sm_count: int | None = None
    sensitivity: Sensitivity = Sensitivity()
    contests: tuple[Contest, ...] = ()
    """As they were measured: several sizes of the L2 antagonist tell how much cache the job needs."""

    kernels: tuple[KernelUse, ...] = ()
    """Those with the most time first; at most a hundred."""

    copies: tuple[CopyUse, ...] = ()
    is_simulated: bool = False

    def demand_of(self, resource: Resource) -> float | None:
        """Return the fraction of a resource that it uses while it runs; None if unknown."""
        return next((demand.fraction for demand in self.demands if demand.resource is resource), None)


@dataclass(frozen=True, slots=True)
class Run:
    """One run as its signature's history keeps it."""

    signature: str
    """Which program; see `Job.signature`."""

    gpu_name: str
    """Product name of its GPU: peaks and durations differ between models."""

    job_id: str
    owner_uid: int
    slice_bytes: int
    """Per GPU, the largest that it had."""

    peak_bytes: int
    """Most that any one of its slices held, context included."""

    context_bytes: int
    """Of one CUDA context on its GPU; 0 where that is not known."""

    refusals: int
    """Allocations that its own limit refused."""

    duration_seconds: float
    """From its start to its end."""

    ended_at_seconds: float
    """Seconds since the epoch."""

    exit_code: int | None
    """None where nobody saw it end."""

    refused_at_bytes: int = 0
    """Slice in which its limit refused it last; 0 if it never did, and where that is not known."""

    compute_share: float | None = None
    """Of each GPU's time, at its end; None where it asked for none."""

    sharing: SharingMode = SharingMode.TIME_SLICE
    """How it shared its GPUs."""
