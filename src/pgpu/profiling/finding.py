"""What is told of a profiled program in the end. A value."""

from dataclasses import dataclass

from pgpu.model import Job, Profile
from pgpu.profiling.counters import KernelCounters
from pgpu.profiling.measurement import Measurement
from pgpu.profiling.sensitivity import Loss


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """One run, and what others beside it told."""

    job: Job
    """The run that the profile is of: of several the last one alone."""

    profile: Profile
    measurement: Measurement
    failed: Job | None = None
    """The first run whose command failed."""

    cache: Loss | None = None
    """With the smallest L1 cache instead of the largest."""

    counters: tuple[KernelCounters, ...] = ()
    """What Nsight Compute counted in a run of its own, the kernels with the most time first."""

    notes: tuple[str, ...] = ()
    """What could not be measured, and why."""
