"""What kernels that run at the same time under MPS do to each other.

Multiprocessors, pipes and bandwidth are divided: who needs less than an equal share gets it, the rest is divided among the
others. Caches are lost rather than divided: what companions bring into the L2 cache sends a job's reads to memory, and what they
read on the same multiprocessors takes its L1 cache. A job takes as long as what it lacks most makes it, and whoever is held up by
one thing presses less on the others: all slowdowns are found together.

The design proposed sums of utilisations above a threshold of 0.3 and one step at a full L2 cache; both jump where nothing
happens on a GPU, and slow a job that hardly uses a resource as much as one that lives on it.

Sources: max-min fairness for the shares; roofline (Williams et al., CACM 2009) for the maximum; gpulet (ATC 2022), iGniter and Orion (EuroSys 2024), which
say which neighbours hurt: those that need the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pgpu.model import Resource


@dataclass(frozen=True, slots=True)
class Constants:
    """What sharing costs on one model of GPU under one driver."""

    switch_overhead: float = 0.03
    """By this fraction everybody gets slower while several contexts take turns. Source: design's 1.03, unproven."""

    crowd_overhead: float = 0.0
    """By this fraction kernels get slower for each companion that runs at once under MPS, beyond what they compete for."""

    l1_weight: float = 1.0
    """How much of the slowdown with the smallest L1 carve-out a companion on the same multiprocessors causes."""

    l2_weight: float = 1.0
    """How much of the L2 cache companions take, as a multiple of what they touch."""

    is_calibrated: bool = False
    """Whether they were fitted on this model of GPU and driver."""


PIPES = (Resource.TENSOR, Resource.FP32, Resource.FP64, Resource.L2, Resource.PCIE)
"""What is divided among those who use it at the same time, beside multiprocessors and memory bandwidth."""


@dataclass(frozen=True, slots=True)
class Needs:
    """One job's kernels. Times are parts of their time alone: 1 is all of it."""

    sm: float = 1.0
    """0 to 1: of the multiprocessors' room for blocks."""

    spread: float = 1.0
    """0 to 1: on how many of the multiprocessors there are blocks of it."""

    own: float = 1.0
    """What its own threads take with all of their room, if nothing else held them up: latency and arithmetic in turn."""

    pipes: dict[Resource, float] = field(default_factory=dict)
    """What each pipe needs for its work, only of `PIPES` and only what is known."""

    memory: float = 0.0
    """What the memory needs for its work while the job has the L2 cache for itself."""

    lost_memory: float = 0.0
    """Likewise with nothing of its own in the L2 cache; at least `memory`, and often more than 1."""

    footprint: float = 0.0
    """How much of the L2 cache it touches; 1 is all of it, and more than 1 does not fit."""

    stream: float = 0.0
    """What it brings into the L2 cache whatever it keeps there: of the cache's bandwidth, as `pipes` has it."""

    grain: float = 1.0
    """How often it comes back to a line of the L2 cache for each time that it has read as much as a line: 4 where a thread
    walks along a line by sectors. Who comes back more often keeps more."""

    l1: float = 0.0
    """By how much they take longer with the smallest L1 cache instead of the largest; 0 where the next three say more."""

    l1_reuse: float = 0.0
    """How fast the L1 cache is lost: its part that is left is exp(−this · what companions read of L2's bandwidth, on the same
    multiprocessors, until the job comes back to its lines)."""

    l1_reads: float = 0.0
    """What the L2 cache must give without the L1 cache, beyond what `pipes` has."""

    l1_memory: float = 0.0
    """And what the memory must do then, beyond `memory`."""


_STEPS = 40
_SETTLED_CACHING = 1e-5


@dataclass(frozen=True, slots=True)
class Lines:
    """What one job comes back to."""

    footprint: float
    """Of the cache; 1 is all of it."""

    touches: float
    """How many lines it touches in a unit of time, in any unit that all share; 0 where nobody comes."""

    def stays(self, brought: float) -> float:
        """Return the chance that a line is still there, where so many come in each unit of time."""
        return math.exp(-brought * self.footprint / self.touches) if self.touches > 0 else 1.0


def hits(present: Sequence[Lines], stream: float) -> list[float]:
    """Return for each the part of its touches that find their line, 0 to 1.

    Newton's steps from above towards the lines that come in: the function is concave, so that no step goes too far, and where
    there are several answers it is the one in which least is kept.

    Args:
        present: Those who share the cache.
        stream: Lines that come in each unit of time and are never touched again.
    """
    most = brought = stream + sum(each.touches for each in present)
    for _ in range(_STEPS):
        missed, slope = stream, 0.0
        for each in present:
            left = each.stays(brought)
            missed += each.touches * (1 - left)
            slope += each.footprint * left if each.touches > 0 else 0.0
        after = max(stream, brought / 2 if slope >= 1 else brought - (missed - brought) / (slope - 1))
        if brought - after <= _SETTLED_CACHING * most:
            break
        brought = after
    return [each.stays(brought) for each in present]


Companions = Sequence[tuple[Needs, float]]
"""Those beside a job, each with the fraction of the time in which its kernels run."""

_PASSES = 4
"""Hits depend on who is how fast, and speeds on the hits: so often one follows from the other."""

_ROUNDS = 12
"""Until nobody gets slower by being given too little of something; two or three are enough for most."""

_SETTLED = 1e-3


def mps_slowdown(needs: Needs, others: Companions, constants: Constants) -> float:
    """Return how many times longer a job's kernels take beside others under MPS; at least 1.

    Args:
        needs: Of the job.
        others: Those that run at the same time.
        constants: Of the GPU.
    """
    return mps_slowdowns([(needs, 1.0), *others], constants)[0]


def mps_slowdowns(present: Companions, constants: Constants) -> list[float]:
    """Return how many times longer the kernels of each take beside the others; at least 1.

    Args:
        present: All that run at the same time.
        constants: Of the GPU.
    """
    here = [(each, part) for each, part in present if part > 0]
    if len(here) < 2:  # noqa: PLR2004 - one job is beside nobody
        return [1.0] * len(present)
    found = iter(_Company(here, constants).settled())
    return [next(found) if part > 0 else 1.0 for _each, part in present]


def time_slice_slowdown(others_waiting: float, constants: Constants) -> float:
    """Return how many times longer kernels take where contexts take turns.

    Args:
        others_waiting: How many others have work, on average.
        constants: Of the GPU.
    """
    return (1 + others_waiting) * (1 + constants.switch_overhead * min(1.0, others_waiting))


def fair_level(wanted: Sequence[float]) -> float:
    """Return up to what everybody is served of a whole: who wants less gets it, the others get this; 1 where all is enough."""
    left, rest = 1.0, len(wanted)
    for each in sorted(wanted):
        if each > left / rest:
            return left / rest
        left, rest = left - each, rest - 1
    return 1.0


class _Company:
    """Jobs that run at the same time."""

    def __init__(self, present: Companions, constants: Constants) -> None:
        self._jobs = [each for each, _part in present]
        self._parts = [part for _each, part in present]
        self._constants = constants
        level = fair_level([each.sm * part for each, part in present])
        self._room = [min(1.0, level / each.sm) if each.sm > 0 else 1.0 for each in self._jobs]
        self._own = [each.own / room * (1 + self._l1(at)) for at, (each, room) in enumerate(self._at_room())]
        self._alone = [_hits_alone(each) for each in self._jobs]
        self._pipes = [pipe for pipe in PIPES if any(each.pipes.get(pipe, 0.0) > 0 for each in self._jobs)]

    def settled(self) -> list[float]:
        """Return how many times longer each takes, once that agrees with what caches keep."""
        times = [1.0] * len(self._jobs)
        for _ in range(_PASSES):
            before, times = times, self._shared(self._uses(times))
            if max(abs(now - was) for now, was in zip(times, before, strict=True)) < _SETTLED:
                break
        company = sum(self._parts)
        overhead = self._constants.crowd_overhead
        return [
            max(1.0, time * (1 + overhead * (company - part))) for time, part in zip(times, self._parts, strict=True)
        ]

    def _at_room(self) -> list[tuple[Needs, float]]:
        return list(zip(self._jobs, self._room, strict=True))

    def _l1(self, at: int) -> float:
        """Blocks go where room is, so that two jobs meet only where both are on more than all multiprocessors together.

        Where nobody measured what companions take of L1: one whose own time depends on L1 fills its half.
        """
        met = sum(
            part * _common(self._jobs[at], each) * (1.0 if each.l1 > _NOTICEABLE else 0.0)
            for other, (each, part) in enumerate(zip(self._jobs, self._parts, strict=True))
            if other != at
        )
        return self._constants.l1_weight * self._jobs[at].l1 * min(1.0, met)

    def _shared(self, uses: Sequence[Sequence[float]]) -> list[float]:
        """Divide what each uses of each thing until nobody gets slower by it."""
        times = [max(1.0, own, *(use[at] for use in uses)) for at, own in enumerate(self._own)]
        for _ in range(_ROUNDS):
            before = times
            levels = [
                fair_level([each * part / time for each, part, time in zip(use, self._parts, times, strict=True)])
                for use in uses
            ]
            times = [
                max(time, *(use[at] / level for use, level in zip(uses, levels, strict=True)))
                for at, time in enumerate(times)
            ]
            if all(now <= was * (1 + _SETTLED) for now, was in zip(times, before, strict=True)):
                break
        return times

    def _uses(self, times: Sequence[float]) -> list[list[float]]:
        """Return what each uses, in its time alone, of the memory and of each pipe, where everybody is so fast."""
        kept, lost_l1 = self._kept(times), [self._lost_l1(at, times) for at in range(len(times))]
        memory = [
            each.memory + (each.lost_memory - each.memory) * (1 - left) + each.l1_memory * lost
            for each, left, lost in zip(self._jobs, kept, lost_l1, strict=True)
        ]
        of_pipes = [
            [
                each.pipes.get(pipe, 0.0) + (each.l1_reads * lost if pipe is Resource.L2 else 0.0)
                for each, lost in zip(self._jobs, lost_l1, strict=True)
            ]
            for pipe in self._pipes
        ]
        return [memory, *of_pipes]

    def _kept(self, times: Sequence[float]) -> list[float]:
        """Return what each keeps of what it would have in the L2 cache alone."""
        if all(alone is None for alone in self._alone):
            return [1.0] * len(times)
        paces = [part / time for part, time in zip(self._parts, times, strict=True)]
        lines = [
            Lines(self._constants.l2_weight * each.footprint * room, touches_of(each) * pace)
            for (each, room), pace in zip(self._at_room(), paces, strict=True)
        ]
        stream = sum(each.stream * pace for each, pace in zip(self._jobs, paces, strict=True))
        together = hits(lines, stream)
        return [
            1.0 if not alone else min(1.0, found / alone) for found, alone in zip(together, self._alone, strict=True)
        ]

    def _lost_l1(self, at: int, times: Sequence[float]) -> float:
        """Return how much of its L1 cache a job loses to what companions read on its multiprocessors until it comes back."""
        own = self._jobs[at]
        if own.l1_reuse <= 0:
            return 0.0
        passing = sum(
            part / time * each.pipes.get(Resource.L2, 0.0) * _common(own, each) * own.spread / each.spread
            for other, (each, part, time) in enumerate(zip(self._jobs, self._parts, times, strict=True))
            if other != at and each.spread > 0
        )
        return 1 - math.exp(-own.l1_reuse * passing * times[at])


_NOTICEABLE = 0.02
_LEAST_RATE = 0.01


def touches_of(needs: Needs) -> float:
    """Return how often a job comes back to lines of the L2 cache; where nobody measured its bandwidth all come alike."""
    rate = needs.pipes.get(Resource.L2)
    return needs.grain * (1.0 if rate is None else max(_LEAST_RATE, rate - needs.stream))


def _hits_alone(needs: Needs) -> float | None:
    """Return what it finds in the L2 cache alone; None where that saves it nothing."""
    if needs.footprint <= 0 or needs.lost_memory <= needs.memory:
        return None
    return hits([Lines(needs.footprint, touches_of(needs))], needs.stream)[0]


def _common(needs: Needs, other: Needs) -> float:
    return max(0.0, min(1.0, (needs.spread + other.spread - 1) / needs.spread)) if needs.spread > 0 else 0.0
