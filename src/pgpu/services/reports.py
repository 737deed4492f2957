"""State of jobs, queue and GPUs at one moment, as clients get it; values only, so that a client need not load the engine."""

from dataclasses import dataclass

from pgpu.enforcement import SliceUse
from pgpu.engine.watch.gpu_time import GpuTime
from pgpu.model import Gpu, Job, Outsider, SharingMode


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One GPU as `pgpu gpus` shows it."""

    gpu: Gpu
    used_bytes: int
    """In use by all processes, in bytes."""

    granted_bytes: int
    """Sum of the slices granted on it."""

    capacity_bytes: int
    """What slices may sum to now: memory less headroom less the use of outsiders."""

    enforcer: str
    does_not_cover: str
    utilisation_percent: int | None
    jobs: tuple[str, ...]
    """Ids of the jobs that hold a slice of it."""

    outsiders: tuple[Outsider, ...] = ()
    """Processes that compute on it outside of every lease."""

    granted_compute: float = 0.0
    """Sum of the shares of its time that are granted, 0 to 1."""

    sharing: SharingMode | None = None
    """How the jobs on it share it; None while there is none."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """One job and what it holds now."""

    job: Job
    use: tuple[SliceUse, ...]
    """One for each slice; empty unless it runs."""

    time: tuple[GpuTime, ...] = ()
    """One for each slice; empty until it uses a GPU, and after its end."""


@dataclass(frozen=True, slots=True)
class QueueReport:
    """One waiting job as `pgpu queue` shows it."""

    position: int | None
    """From 1 on, in the order of admission; None for a job that waits for other jobs first."""

    job: Job
    """With its current reason and expected start."""
