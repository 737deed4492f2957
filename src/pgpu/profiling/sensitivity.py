"""What a job loses where others use up what it needs, from several runs of it. Pure.

Every run is weighed by its kernels' durations, not by the clock on the wall: for each kernel and shape the mean duration,
times how often the runs alone launched it. So a program that does more work when it is fast counts the same.

Source: P3 calls a program cache sensitive by its hit rates under a small and a large L1; durations need no counters.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pgpu.model import Antagonist, Contest, Evidence, Sensitivity
from pgpu.profiling.measurement import Interval, Measurement, length, overlap, union

LEAST_MET = 0.5
"""Of the time in which the job's kernels ran, so much must have been beside the antagonist's for a contest to tell anything."""

_ShapeKey = tuple[str, tuple[int, int, int], tuple[int, int, int], int]


@dataclass(frozen=True, slots=True)
class Loss:
    """How much longer kernels took under one condition than under another."""

    fraction: float
    """0.25 is a quarter longer; below zero is faster."""

    spread: float
    """Between the runs of one condition, the larger of the two: (longest − shortest) / median. A loss below it may be none."""

    runs: int
    """Of each condition; the smaller number."""


def loss(before: Sequence[Measurement], after: Sequence[Measurement]) -> Loss | None:
    """Compare runs under two conditions; None where no kernel was measured in both."""
    weights = _weights(before)
    times = [[_weighed(run, weights) for run in runs] for runs in (before, after)]
    known = [[each for each in found if each is not None] for found in times]
    if not all(known):
        return None
    medians = [statistics.median(found) for found in known]
    spread = max((max(found) - min(found)) / median for found, median in zip(known, medians, strict=True))
    return Loss(medians[1] / medians[0] - 1, spread, min(len(found) for found in known))


@dataclass(frozen=True, slots=True)
class Beside:
    """Runs beside an antagonist that was measured too, and how the antagonist did alone."""

    antagonist: Antagonist
    swept_bytes: int
    sm_fraction: float
    jobs: tuple[Measurement, ...]
    """One after the other, while the antagonist went on."""

    neighbour: Measurement
    alone: Measurement
    """The antagonist's."""

    fraction: float | None
    """Of its resource that the antagonist used alone."""


def contest(runs_alone: Sequence[Measurement], beside: Beside) -> Contest | None:
    """Say who slowed whom; None where their kernels hardly met, as where a busy host kept the antagonist from launching."""
    busy = _busy(beside.jobs)
    met_ns = sum(overlap(busy, span) for span in _busy([beside.neighbour]))
    if met_ns < LEAST_MET * length(busy):
        return None
    lost = loss(runs_alone, beside.jobs)
    antagonist_slowdown = _slowdown_while(beside.neighbour, beside.alone, busy)
    if lost is None or antagonist_slowdown is None:
        return None
    return Contest(
        antagonist=beside.antagonist,
        swept_bytes=beside.swept_bytes,
        sm_fraction=beside.sm_fraction,
        slowdown=1 + lost.fraction,
        antagonist_slowdown=antagonist_slowdown,
        antagonist_fraction=beside.fraction,
    )


def sensitivity(cache: Loss | None, contests: Sequence[Contest]) -> Sensitivity:
    """Put together what was measured; of several antagonists of a kind the one that hurt most."""
    most: defaultdict[Antagonist, list[float]] = defaultdict(list)
    for each in contests:
        most[each.antagonist].append(each.slowdown - 1)
    return Sensitivity(
        cache=None if cache is None else cache.fraction,
        l2=max(most[Antagonist.L2], default=None),
        dram=max(most[Antagonist.DRAM], default=None),
        evidence=Evidence.ANTAGONIST,
    )


def _mean_durations(run: Measurement) -> dict[_ShapeKey, float]:
    found = (each for each in run.log.shapes if each is not None and each.measured)
    return {(e.name, e.grid, e.block, e.dynamic_shared_bytes): e.total_ns / e.measured for e in found}


def _weights(runs: Sequence[Measurement]) -> dict[_ShapeKey, float]:
    """How often a run launched each, on average."""
    counts: defaultdict[_ShapeKey, int] = defaultdict(int)
    for run in runs:
        for each in run.log.shapes:
            if each is not None and each.measured:
                counts[each.name, each.grid, each.block, each.dynamic_shared_bytes] += each.launches
    return {key: count / len(runs) for key, count in counts.items()}


def _weighed(run: Measurement, weights: Mapping[_ShapeKey, float]) -> float | None:
    """Kernels that a run lacks are left out of it: that is a program that takes other ways, which nobody can compare."""
    means = _mean_durations(run)
    if not weights or not all(key in means for key in weights):
        return None
    return sum(means[key] * weight for key, weight in weights.items()) or None


def _busy(runs: Sequence[Measurement]) -> list[Interval]:
    return union(interval for run in runs for use in run.gpus for interval in use.busy)


def _slowdown_while(run: Measurement, alone: Measurement, busy: Sequence[Interval]) -> float | None:
    """How much longer an antagonist's kernels took than alone while the job's ran; None where they never met.

    A kernel of duration D that takes A alone and met the job for M of D did M/s + (D − M) = A of work, s the slowdown.
    """
    means = _mean_durations(alone)
    met_ns, work_ns = 0.0, 0.0
    for record in run.log.records:
        shape = None if record.shape is None else run.log.shapes[record.shape]
        if shape is None or record.start_ns is None:
            continue
        key = (shape.name, shape.grid, shape.block, shape.dynamic_shared_bytes)
        together_ns = overlap(busy, (record.start_ns, record.start_ns + record.duration_ns))
        if key in means and together_ns:
            met_ns += together_ns
            work_ns += means[key] - (record.duration_ns - together_ns)
    return max(1.0, met_ns / work_ns) if work_ns > 0 else None
