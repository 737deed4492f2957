"""Which sharing mode jobs should have together, how slow each gets in each mode, and what that rests on.

It refuses to decide for the engine, and to promise: predictions are verified on live progress (`verification`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pgpu.advising.contention import Constants, mps_slowdown, time_slice_slowdown
from pgpu.advising.mean_value_analysis import slowdowns
from pgpu.advising.needs_estimation import L2_CACHE, MEMORY_BANDWIDTH, NeedsEstimate, estimate_needs
from pgpu.model import Evidence, Profile, SharingMode

VOLTA = (7, 0)
MOST_CLIENTS = 48


@dataclass(frozen=True, slots=True)
class GpuKind:
    """What the advice must know of a GPU."""

    name: str
    """As profiles of it are named."""

    compute_capability: tuple[int, int] | None
    """None is not known: then MPS is taken to be as on the newest."""

    is_instance: bool = False
    """Whether it is a MIG instance."""


def gates(profiles: Sequence[Profile], gpu: GpuKind, *, gpu_counts: Sequence[int] = ()) -> tuple[str, ...]:
    """Return what stands against MPS for these jobs together, in words; nothing may.

    Args:
        profiles: The jobs.
        gpu: Which they would share.
        gpu_counts: How many GPUs each of them has; none told: one.
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
        (gpu.is_instance, "a MIG instance is granted whole, to one job: nobody is there to share it with"),
        (is_old, "before Volta MPS does not keep clients' memory apart"),
    )
    return tuple(reason for stands, reason in against if stands)


INTERACTIVE_TOLERANCE = 1.30
"""So many times longer may an interactive job's work take. Source: the latency limits of Orion's and gpulet's evaluations."""

LEAST_GAIN = 1.02
"""MPS must promise so much, as a geometric mean over the jobs: it costs fault isolation. About as much as predictions are off;
the design's 1.10 left gains lying (docs/decisions/0031)."""

LEAST_DOUBTFUL_GAIN = 1.05
"""And so much where confidence is low: what is not known is taken to be needed, and switches alone make a gain of that."""

SLACK = 1.10
"""The slowest may be predicted so much slower than in turns: predictions are off by a tenth on average."""


class Confidence(StrEnum):
    """How far a prediction can be believed, the least first."""

    LOW = "low"
    """Memory bandwidth is not known, or only antagonists were there and none took the L2 cache."""

    FAIR = "fair"
    """Antagonists: measured, and told from few points. Or GPM and counters that tell nothing of the L2 cache."""

    GOOD = "good"
    """GPM, or counters without antagonists, and the L2 cache is known."""

    HIGH = "high"
    """Counters and antagonists."""


@dataclass(frozen=True, slots=True)
class JobAdvice:
    """One job together with the others."""

    signature: str
    time_slice_slowdown: float
    """Its time together by its time alone, at least 1, where contexts take turns."""

    mps_slowdown: float
    """Likewise under MPS, whether or not it may be used."""

    evidence: tuple[Evidence, ...]
    confidence: Confidence
    unknown: tuple[str, ...]
    """What nothing told of it. It is taken to need all of the multiprocessors, memory bandwidth and L2 cache that are named here."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do with jobs on one GPU."""

    mode: SharingMode
    """`exclusive`: not together."""

    gain: float
    """Geometric mean of how many times faster jobs are under MPS than taking turns; below 1 MPS is slower."""

    faster_mode: SharingMode
    """The one that speed alone speaks for; `mode` asks MPS for more, since it costs fault isolation."""

    jobs: tuple[JobAdvice, ...]
    """In the order in which they were given."""

    gates: tuple[str, ...]
    """What stands against MPS, in words."""

    confidence: Confidence
    is_calibrated: bool
    reasons: tuple[str, ...] = ()
    """Why `mode` is not `faster_mode`, in words; none where it is."""


def advise(
    profiles: Sequence[Profile],
    gpu: GpuKind,
    *,
    constants: Constants | None = None,
    tolerance: float | None = None,
    gpu_counts: Sequence[int] = (),
) -> Advice:
    """Say how jobs should share a GPU.

    Pure, and the same whatever the order of the jobs.

    Args:
        profiles: Of each job alone on this kind of GPU; at least one.
        gpu: Which kind.
        constants: Of this kind of GPU and its driver; None for the defaults.
        tolerance: The most that the slowest may be slowed; None for batch jobs, which may take as long as turns take.
        gpu_counts: How many GPUs each job has.
    """
    chosen = constants or Constants()
    sliced = predict(profiles, SharingMode.TIME_SLICE, chosen)
    mps = predict(profiles, SharingMode.MPS, chosen)
    jobs = tuple(_job(profile, slow, fast) for profile, slow, fast in zip(profiles, sliced, mps, strict=True))
    stands_against = gates(profiles, gpu, gpu_counts=gpu_counts)
    gain = math.exp(math.fsum(math.log(slow / fast) for slow, fast in zip(sliced, mps, strict=True)) / len(profiles))
    faster = SharingMode.MPS if gain > 1 else SharingMode.TIME_SLICE
    confidence = min((each.confidence for each in jobs), key=list(Confidence).index)
    is_enough = gain >= (LEAST_DOUBTFUL_GAIN if confidence is Confidence.LOW else LEAST_GAIN)
    mode = choice(sliced, mps, gain, tolerance, may_use_mps=is_enough and not stands_against)
    return Advice(
        mode=mode,
        gain=gain,
        faster_mode=faster,
        jobs=jobs,
        gates=stands_against,
        confidence=confidence,
        is_calibrated=chosen.is_calibrated,
        reasons=() if mode is faster else _reasons(mode, gain, tolerance, stands_against, is_enough=is_enough),
    )


def predict(profiles: Sequence[Profile], mode: SharingMode, constants: Constants) -> tuple[float, ...]:
    """Return how many times longer each job takes together with the others than alone, in the order given.

    Args:
        profiles: Of each job alone.
        mode: `TIME_SLICE` or `MPS`; alone nobody is slower.
        constants: Of the GPU.
    """
    if mode is SharingMode.EXCLUSIVE:
        return (1.0,) * len(profiles)
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
    """Choose from the slowdowns in both modes.

    Source: design, Advice: MPS if it gains enough and makes the slowest no slower than tolerated or than turns would.
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
    mode: SharingMode, gain: float, tolerance: float | None, stands_against: tuple[str, ...], *, is_enough: bool
) -> tuple[str, ...]:
    """Say why jobs that one mode would be faster for are not in it: what `choice` stopped at first."""
    against_mps = stands_against or (_against_mps(gain, tolerance, is_enough=is_enough),)
    if mode is SharingMode.EXCLUSIVE:
        return (*against_mps, "in turns somebody would be slower than is tolerated")
    return against_mps


def _against_mps(gain: float, tolerance: float | None, *, is_enough: bool) -> str:
    if gain <= 1:
        return "MPS gains nothing"
    if not is_enough:
        return "that is too little to share each other's faults for"
    if tolerance is not None:
        return "under MPS somebody would be slower than is tolerated"
    return f"under MPS somebody would take more than {SLACK:g} times as long as in turns"


def _job(profile: Profile, sliced: float, mps: float) -> JobAdvice:
    found = estimate_needs(profile)
    return JobAdvice(profile.signature, sliced, mps, found.evidence, _confidence(found), found.unknown)


def _confidence(reading: NeedsEstimate) -> Confidence:
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
