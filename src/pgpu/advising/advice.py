"""Advice for jobs on one GPU: which sharing mode to use, the predicted slowdown of each job in each mode, and the evidence for it.

A job alone runs kernels for a part of its time and pauses for the rest. On arrival at the GPU it sees what the other jobs would
do without it (arrival theorem of closed queueing networks), so the slowdown of a set of jobs follows from sets with one job
less. Predictions are verified on the progress of the running jobs (`verification`).

Sources: Reiser, Lavenberg, Mean-value analysis of closed multichain queuing networks (JACM 1980); for two jobs whose kernels
take turns it gives 1 - d_i + d_i (1 + d_j). Limits of MPS: NVIDIA, Multi-Process Service (2025), "Volta MPS": 48 clients per
GPU; before Volta clients share one address space, so a stray write of one reaches another's memory. A fault is contained on none
of them.
"""

import math
from collections.abc import Callable, Sequence
from enum import StrEnum

from pgpu.advising.contention import Constants, mps_slowdown, time_slice_slowdown
from pgpu.advising.needs_estimation import L2_CACHE, MEMORY_BANDWIDTH, NeedsEstimate, estimate_needs
from pgpu.model import Evidence, Profile, SharingMode
from pgpu.structs import Struct

VOLTA = (7, 0)
MOST_CLIENTS = 48


class GpuKind(Struct, frozen=True):
    """Properties of a GPU that the advice depends on."""

    name: str
    """Name of the GPU in its profiles."""

    compute_capability: tuple[int, int] | None
    """None if unknown, which counts as new enough for MPS."""

    is_instance: bool = False
    """Whether it is a MIG instance."""


def gates(profiles: Sequence[Profile], gpu: GpuKind, *, gpu_counts: Sequence[int] = ()) -> tuple[str, ...]:
    """Return, as text, what rules out MPS for these jobs together, whatever it would gain.

    Args:
        profiles: The jobs.
        gpu: The GPU that they would share.
        gpu_counts: Number of GPUs of each job; empty for one each.
    """
    is_old = gpu.compute_capability is not None and gpu.compute_capability < VOLTA
    against = (
        (
            len({profile.owner_uid for profile in profiles}) > 1,
            "their users do not trust each other: a fault under MPS ends all of its clients",
        ),
        (len(profiles) > MOST_CLIENTS, f"MPS has room for {MOST_CLIENTS} clients on a GPU"),
        (
            any(count > 1 for count in gpu_counts),
            "a job on several GPUs would carry a fault from one GPU's MPS server to another's",
        ),
        (gpu.is_instance, "a MIG instance is granted whole, to one job, and not shared"),
        (is_old, "before Volta MPS does not keep clients' memory apart"),
    )
    return tuple(reason for stands, reason in against if stands)


# Largest slowdown of an interactive job. Source: the latency limits in the evaluations of Orion and gpulet.
INTERACTIVE_TOLERANCE = 1.30

# Least predicted gain for MPS, as a geometric mean over the jobs, since it costs fault isolation. About the error of
# predictions; the design's 1.10 gave up real gains (docs/decisions/0031).
LEAST_GAIN = 1.02

# Least gain if confidence is low: unknown needs count as full, and saved context switches alone can look like a gain.
LEAST_DOUBTFUL_GAIN = 1.05

# Factor by which the slowest job may be slower than in turns: predictions are off by 10 % on average.
SLACK = 1.10


class Confidence(StrEnum):
    """Confidence in a prediction, the lowest first."""

    LOW = "low"
    """Memory bandwidth is unknown, or measured by antagonists only and none exhausted the L2 cache."""

    FAIR = "fair"
    """Measured beside antagonists, at few points; or GPM or counters without the L2 cache."""

    GOOD = "good"
    """GPM, or counters without antagonists, with the L2 cache known."""

    HIGH = "high"
    """Counters and antagonists."""


class JobAdvice(Struct, frozen=True):
    """Prediction for one job beside the others."""

    signature: str
    time_slice_slowdown: float
    """Time together over time alone, at least 1, if contexts take turns."""

    mps_slowdown: float
    """The same under MPS, whether or not it may be used."""

    evidence: tuple[Evidence, ...]
    confidence: Confidence
    unknown: tuple[str, ...]
    """Resources of unknown use. For multiprocessors, memory bandwidth and L2 cache, full use is assumed."""


class Advice(Struct, frozen=True):
    """Advice for jobs on one GPU."""

    mode: SharingMode
    """`exclusive`: do not run them together."""

    gain: float
    """Geometric mean of the speedup of MPS over turns; below 1 MPS is slower."""

    faster_mode: SharingMode
    """The faster mode. `mode` requires more of MPS, since it costs fault isolation."""

    jobs: tuple[JobAdvice, ...]
    """In the order of the profiles."""

    gates: tuple[str, ...]
    """What rules out MPS, as text."""

    confidence: Confidence
    is_calibrated: bool
    reasons: tuple[str, ...] = ()
    """Why `mode` is not `faster_mode`, as text; empty if it is."""


def advise(
    profiles: Sequence[Profile],
    gpu: GpuKind,
    *,
    constants: Constants | None = None,
    tolerance: float | None = None,
    gpu_counts: Sequence[int] = (),
) -> Advice:
    """Advise how jobs should share a GPU.

    Pure, and independent of the order of the jobs.

    Args:
        profiles: Of each job alone on this model of GPU; at least one.
        gpu: The GPU.
        constants: Of this model of GPU and its driver; None for the defaults.
        tolerance: Largest slowdown of the slowest job; None for batch jobs, which may take as long as in turns.
        gpu_counts: Number of GPUs of each job.
    """
    chosen = constants or Constants()
    sliced = predict(profiles, SharingMode.TIME_SLICE, chosen)
    mps = predict(profiles, SharingMode.MPS, chosen)
    jobs = tuple(
        JobAdvice(profile.signature, slow, fast, found.evidence, confidence_in(found), found.unknown)
        for profile, slow, fast, found in zip(profiles, sliced, mps, map(estimate_needs, profiles), strict=True)
    )
    obstacles = gates(profiles, gpu, gpu_counts=gpu_counts)
    # `fsum` rounds once, so the gain does not depend on the order of the jobs.
    gain = math.exp(math.fsum(math.log(slow / fast) for slow, fast in zip(sliced, mps, strict=True)) / len(profiles))
    faster = SharingMode.MPS if gain > 1 else SharingMode.TIME_SLICE
    confidence = min((each.confidence for each in jobs), key=list(Confidence).index)
    is_enough = gain >= (LEAST_DOUBTFUL_GAIN if confidence is Confidence.LOW else LEAST_GAIN)
    mode = choice(sliced, mps, gain, tolerance, may_use_mps=is_enough and not obstacles)
    return Advice(
        mode=mode,
        gain=gain,
        faster_mode=faster,
        jobs=jobs,
        gates=obstacles,
        confidence=confidence,
        is_calibrated=chosen.is_calibrated,
        reasons=() if mode is faster else _reasons(mode, gain, tolerance, obstacles, is_enough=is_enough),
    )


def predict(profiles: Sequence[Profile], mode: SharingMode, constants: Constants) -> tuple[float, ...]:
    """Return the slowdown of each job together with the others, in the order of the profiles.

    Args:
        profiles: Of each job alone.
        mode: `EXCLUSIVE` gives 1 for all.
        constants: Of the GPU.
    """
    if mode is SharingMode.EXCLUSIVE:
        return (1.0,) * len(profiles)
    # In a fixed order, so that rounding does not depend on the order of the jobs.
    order = sorted(range(len(profiles)), key=lambda index: repr(profiles[index]))
    readings = [estimate_needs(profiles[index]) for index in order]
    needs = [each.needs for each in readings]

    def under_mps(job: int, beside: Sequence[float]) -> float:
        return mps_slowdown(
            needs[job], [(needs[each], part) for each, part in enumerate(beside) if each != job], constants
        )

    def in_turns(job: int, beside: Sequence[float]) -> float:
        return time_slice_slowdown(sum(part for each, part in enumerate(beside) if each != job), constants)

    found = slowdowns([each.busy for each in readings], under_mps if mode is SharingMode.MPS else in_turns)
    of_job = dict(zip(order, found, strict=True))
    return tuple(of_job[index] for index in range(len(profiles)))


def choice(
    sliced: Sequence[float], mps: Sequence[float], gain: float, tolerance: float | None, *, may_use_mps: bool
) -> SharingMode:
    """Choose the mode from the slowdowns in both.

    Source: design, Advice: MPS if it gains enough and the slowest job is no slower than the tolerance or than in turns.
    """
    if len(sliced) == 1:
        return SharingMode.TIME_SLICE
    allowed = max(sliced) * SLACK if tolerance is None else max(tolerance, *sliced)
    if may_use_mps and gain >= LEAST_GAIN and max(mps) <= allowed:
        return SharingMode.MPS
    if tolerance is None or max(sliced) <= tolerance:
        return SharingMode.TIME_SLICE
    return SharingMode.EXCLUSIVE


def _reasons(
    mode: SharingMode, gain: float, tolerance: float | None, obstacles: tuple[str, ...], *, is_enough: bool
) -> tuple[str, ...]:
    """Return why the faster mode was not chosen: the first condition of `choice` that failed."""
    if obstacles:
        against_mps = obstacles
    elif gain <= 1:
        against_mps = ("MPS gains nothing",)
    elif not is_enough:
        against_mps = ("that is too little to share each other's faults for",)
    elif tolerance is not None:
        against_mps = ("under MPS a job would be slower than is tolerated",)
    else:
        against_mps = (f"under MPS a job would take more than {SLACK:g} times as long as in turns",)
    if mode is SharingMode.EXCLUSIVE:
        return (*against_mps, "in turns a job would be slower than is tolerated")
    return against_mps


def confidence_in(reading: NeedsEstimate) -> Confidence:
    evidence = reading.evidence
    is_counted = Evidence.COUNTERS in evidence or Evidence.GPM in evidence
    if MEMORY_BANDWIDTH in reading.unknown or (L2_CACHE in reading.unknown and not is_counted):
        return Confidence.LOW
    if L2_CACHE in reading.unknown:
        return Confidence.FAIR
    if Evidence.COUNTERS in evidence:
        return Confidence.HIGH if Evidence.ANTAGONIST in evidence else Confidence.GOOD
    if Evidence.GPM in evidence:
        return Confidence.GOOD
    return Confidence.FAIR if Evidence.ANTAGONIST in evidence else Confidence.LOW


# Slowdown of the kernels of job i, given for each job the fraction of the time in which its kernels run beside.
KernelSlowdown = Callable[[int, Sequence[float]], float]

# Up to this many jobs every combination of running kernels is evaluated (3^n); above, averages of the others are used.
MOST_EXACT = 6

_ROUNDS = 200
_SETTLED = 1e-9


def slowdowns(busy: Sequence[float], kernel_slowdown: KernelSlowdown) -> tuple[float, ...]:
    """Return the slowdown of each job with all the others against alone.

    Args:
        busy: For each job the fraction of its time alone in which a kernel runs, 0 to 1.
        kernel_slowdown: Slowdown of kernels; at least 1, and not decreasing with more jobs.
    """
    kernels = (
        _Subsets(busy, kernel_slowdown).slowdowns()
        if len(busy) <= MOST_EXACT
        else _solve_by_averages(busy, kernel_slowdown)
    )
    return tuple(1 - part + part * longer for part, longer in zip(busy, kernels, strict=True))


class _Subsets:
    """Kernel slowdowns for every subset of other jobs, as bit masks."""

    def __init__(self, busy: Sequence[float], kernel_slowdown: KernelSlowdown) -> None:
        self._busy = busy
        self._kernel_slowdown = kernel_slowdown
        self._known: dict[tuple[int, int], float] = {}

    def slowdowns(self) -> list[float]:
        all_jobs = (1 << len(self._busy)) - 1
        return [self._slowdown(job, all_jobs & ~(1 << job)) for job in range(len(self._busy))]

    def _slowdown(self, job: int, others: int) -> float:
        if (job, others) not in self._known:
            self._known[job, others] = self._expected_slowdown(job, others)
        return self._known[job, others]

    def _expected_slowdown(self, job: int, others: int) -> float:
        """Average over which of the others run kernels at the moment, each independently with its activity."""
        members = [each for each in range(len(self._busy)) if others >> each & 1]
        active = [_activity(self._busy[each], self._slowdown(each, others & ~(1 << each))) for each in members]
        total = 0.0
        for running in range(1 << len(members)):
            beside = [0.0] * len(self._busy)
            chance = 1.0
            for place, each in enumerate(members):
                is_running = bool(running >> place & 1)
                beside[each] = float(is_running)
                chance *= active[place] if is_running else 1 - active[place]
            if chance:
                total += chance * self._kernel_slowdown(job, beside)
        return total


def _activity(busy: float, stretched: float) -> float:
    """Return the fraction of its time in which a job runs kernels that are slowed down by `stretched`."""
    return busy * stretched / (1 - busy + busy * stretched)


def _solve_by_averages(busy: Sequence[float], kernel_slowdown: KernelSlowdown) -> list[float]:
    """Return kernel slowdowns against the mean activity of the others; the fixed point is approached from below."""
    kernels = [1.0] * len(busy)
    for _ in range(_ROUNDS):
        active = [_activity(part, longer) for part, longer in zip(busy, kernels, strict=True)]
        found = [kernel_slowdown(job, [*active[:job], 0.0, *active[job + 1 :]]) for job in range(len(busy))]
        is_settled = max(abs(new - old) for new, old in zip(found, kernels, strict=True)) < _SETTLED
        kernels = found
        if is_settled:
            break
    return kernels
