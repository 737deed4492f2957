"""Slowdown of a job when others exhaust the resources it needs, from several runs of it. Pure.

A run is measured by the durations of its kernels, not by wall-clock time: for each kernel and shape the mean duration, times the
number of its launches in the runs alone. So a program that does more work when it is fast counts the same.

Source: P3 calls a program cache sensitive by its hit rates under a small and a large L1; durations need no counters.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from pgpu.model import Antagonist, Contest, Evidence, Sensitivity
from pgpu.profiling.measurement import Interval, Measurement, length, overlap, union
from pgpu.structs import Struct

# Least fraction of the time of the job's kernels that overlaps with the antagonist's for a contest to be valid.
LEAST_OVERLAP = 0.5

_ShapeKey = tuple[str, tuple[int, int, int], tuple[int, int, int], int]


class Loss(Struct, frozen=True):
    """Relative increase of kernel durations under one condition against another."""

    fraction: float
    """0.25 is a quarter longer; below zero is faster."""

    spread: float
    """(Longest - shortest) / median of the runs of one condition, the larger of both conditions. A loss below it is not significant."""

    runs: int
    """Of each condition; the smaller number."""


def loss(before: Sequence[Measurement], after: Sequence[Measurement]) -> Loss | None:
    """Compare runs under two conditions; None if no kernel was measured in both."""
    weights = _weights(before)
    times = [[_weighted_time(run, weights) for run in runs] for runs in (before, after)]
    known = [[each for each in found if each is not None] for found in times]
    if not all(known):
        return None
    # Medians, since a busy host delays single runs.
    medians = [statistics.median(found) for found in known]
    spread = max((max(found) - min(found)) / median for found, median in zip(known, medians, strict=True))
    return Loss(medians[1] / medians[0] - 1, spread, min(len(found) for found in known))


class Beside(Struct, frozen=True):
    """Runs beside an antagonist, with measurements of the antagonist beside the job and alone."""

    antagonist: Antagonist
    swept_bytes: int
    sm_fraction: float
    jobs: tuple[Measurement, ...]
    """One after the other, while the antagonist ran."""

    neighbour: Measurement
    alone: Measurement
    """Of the antagonist."""

    fraction: float | None
    """Fraction of its resource that the antagonist used alone."""


def contest(runs_alone: Sequence[Measurement], beside: Beside) -> Contest | None:
    """Return the slowdown of job and antagonist; None if their kernels hardly overlapped, as when a busy host delayed launches."""
    busy = _busy_intervals(beside.jobs)
    overlap_ns = sum(overlap(busy, span) for span in _busy_intervals([beside.neighbour]))
    if overlap_ns < LEAST_OVERLAP * length(busy):
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
    """Combine the measurements; of several antagonists of a kind the largest slowdown counts."""
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
    """Return the mean number of launches per run of each kernel and shape."""
    counts: defaultdict[_ShapeKey, int] = defaultdict(int)
    for run in runs:
        for each in run.log.shapes:
            if each is not None and each.measured:
                counts[each.name, each.grid, each.block, each.dynamic_shared_bytes] += each.launches
    return {key: count / len(runs) for key, count in counts.items()}


def _weighted_time(run: Measurement, weights: Mapping[_ShapeKey, float]) -> float | None:
    """Return the weighted time of a run; None if it lacks a kernel, since it then did different work."""
    means = _mean_durations(run)
    if not weights or not all(key in means for key in weights):
        return None
    return sum(means[key] * weight for key, weight in weights.items()) or None


def _busy_intervals(runs: Sequence[Measurement]) -> list[Interval]:
    return union(interval for run in runs for use in run.gpus for interval in use.busy)


def _slowdown_while(run: Measurement, alone: Measurement, busy: Sequence[Interval]) -> float | None:
    """Return the slowdown of an antagonist's kernels while the job's ran; None if they never overlapped.

    A kernel of duration D that takes A alone and overlapped the job for M of D did M/s + (D - M) = A of work at slowdown s.
    """
    means = _mean_durations(alone)
    overlap_ns, work_ns = 0.0, 0.0
    for record in run.log.records:
        shape = None if record.shape is None else run.log.shapes[record.shape]
        if shape is None or record.start_ns is None:
            continue
        key = (shape.name, shape.grid, shape.block, shape.dynamic_shared_bytes)
        together_ns = overlap(busy, (record.start_ns, record.start_ns + record.duration_ns))
        if key in means and together_ns:
            overlap_ns += together_ns
            work_ns += means[key] - (record.duration_ns - together_ns)
    return max(1.0, overlap_ns / work_ns) if work_ns > 0 else None
