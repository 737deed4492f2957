"""Slowdown of kernels that run on one GPU at the same time under MPS, or in turns in time slices.

Multiprocessors, pipes and bandwidth are divided by max-min fairness: a job that needs less than an equal share gets it, the rest
is divided among the others. Caches are lost rather than divided: lines that other jobs bring into the L2 cache turn a job's hits
into memory traffic, and their reads on the same multiprocessors evict its L1 cache. The scarcest resource determines a job's
time, and a job slowed down by one resource uses less of the others, so all slowdowns are solved together by iteration.

A line of a cache stays until its next touch with probability exp(-lines that came in meanwhile / lines of the cache), as with
random replacement. So sets that fit together lose nothing, sets that do not fit lose steeply, and a job that returns to its
lines more often keeps more of them.

The design proposed sums of utilisations above a threshold of 0.3 and one step at a full L2 cache. Both jump where nothing
happens on a GPU, and slow down a job that hardly uses a resource as much as one that depends on it.

Sources: max-min fairness for the shares; roofline (Williams et al., CACM 2009) for the maximum; gpulet (ATC 2022), iGniter and
Orion (EuroSys 2024), which show that jobs with the same needs slow each other down; StatCache (Berg, Hagersten, ISPASS 2004)
for the cache equation, with one class of lines per job; Mei, Chu, Dissecting GPU memory hierarchy through microbenchmarking
(2017): GPUs' caches are not LRU.
"""

import math
from collections.abc import Sequence

from pgpu.model import Resource
from pgpu.structs import Struct, field


class Constants(Struct, frozen=True):
    """Cost of sharing itself on one model of GPU under one driver, which profiles do not contain.

    The defaults are ours and unproven; `pgpu calibrate` fits them on a machine's own GPU.
    """

    switch_overhead: float = 0.03
    """Slowdown of every job while several contexts take turns. Source: design's 1.03, unproven."""

    crowd_overhead: float = 0.0
    """Slowdown of kernels for each other job that runs at the same time under MPS, beyond competition for resources."""

    l1_weight: float = 1.0
    """Part of the slowdown with the smallest L1 carve-out that a job on the same multiprocessors causes."""

    l2_weight: float = 1.0
    """Part of the L2 cache that other jobs take, as a multiple of what they touch."""

    is_calibrated: bool = False
    """Whether they were fitted on this model of GPU and driver."""


# Resources divided among concurrent jobs, besides multiprocessors and memory bandwidth.
PIPES = (Resource.TENSOR, Resource.FP32, Resource.FP64, Resource.L2, Resource.PCIE)


class Needs(Struct, frozen=True):
    """Resource needs of one job's kernels while they run. Times are relative to their time alone: 1 is all of it."""

    sm: float = 1.0
    """0 to 1: share of the multiprocessors' room for blocks."""

    spread: float = 1.0
    """0 to 1: share of the multiprocessors that have blocks of it."""

    own: float = 1.0
    """Time of its own threads with all of their room if nothing else limits them: latency and arithmetic."""

    pipes: dict[Resource, float] = field(default_factory=dict)
    """Time that each pipe needs for its work; only `PIPES`, and only known ones."""

    memory: float = 0.0
    """Time that memory needs for its work while the job has the L2 cache alone."""

    lost_memory: float = 0.0
    """The same with nothing of its own in the L2 cache; at least `memory`, and often more than 1."""

    footprint: float = 0.0
    """Share of the L2 cache that it touches; above 1 it does not fit."""

    stream: float = 0.0
    """Traffic into the L2 cache regardless of what is kept there, as a share of the cache's bandwidth."""

    grain: float = 1.0
    """Returns to a line of the L2 cache for each time that it has read as much as a line: 4 if a thread walks along a line by
    sectors. More returns keep more lines."""

    l1: float = 0.0
    """Slowdown with the smallest L1 cache instead of the largest; 0 if the next three describe it in more detail."""

    l1_reuse: float = 0.0
    """Rate of L1 loss: the part that is left is exp(-this · L2 bandwidth read by other jobs on the same multiprocessors until the
    job returns to its lines)."""

    l1_reads: float = 0.0
    """Additional time of the L2 cache without the L1 cache, beyond `pipes`."""

    l1_memory: float = 0.0
    """Additional time of memory without the L1 cache, beyond `memory`."""


_CACHE_STEPS = 40
_CACHE_SETTLED = 1e-5


class Lines(Struct, frozen=True):
    """Cache lines that one job returns to."""

    footprint: float
    """As a share of the cache; 1 is all of it."""

    touches: float
    """Lines touched per unit of time, in a unit common to all jobs; 0 if none."""

    def stays(self, brought: float) -> float:
        """Return the probability that a line is still there if `brought` lines come in per unit of time."""
        return math.exp(-brought * self.footprint / self.touches) if self.touches > 0 else 1.0


def hits(present: Sequence[Lines], stream: float) -> list[float]:
    """Return the hit rate of each job, 0 to 1.

    Solves for the lines that come in per unit of time by Newton's method from above. The function is concave, so no step
    overshoots; of several solutions it finds the one that keeps least.

    Args:
        present: Jobs that share the cache.
        stream: Lines that come in per unit of time and are never touched again.
    """
    most = brought = stream + sum(each.touches for each in present)
    for _ in range(_CACHE_STEPS):
        missed, slope = stream, 0.0
        for each in present:
            left = each.stays(brought)
            missed += each.touches * (1 - left)
            slope += each.footprint * left if each.touches > 0 else 0.0
        # With a slope of 1 or more Newton's step would not lead down, so the value is halved.
        after = max(stream, brought / 2 if slope >= 1 else brought - (missed - brought) / (slope - 1))
        if brought - after <= _CACHE_SETTLED * most:
            break
        brought = after
    return [each.stays(brought) for each in present]


# Other jobs, each with the fraction of the time in which its kernels run.
Companions = Sequence[tuple[Needs, float]]

# Hit rates depend on speeds and speeds on hit rates: number of iterations between them.
_PASSES = 4

# Most rounds until no job is slowed down further by its shares; two or three suffice for most.
_ROUNDS = 12

_SETTLED = 1e-3
_NOTICEABLE = 0.02
_LEAST_RATE = 0.01


def mps_slowdown(needs: Needs, others: Companions, constants: Constants) -> float:
    """Return the slowdown of a job's kernels beside others under MPS; at least 1.

    Args:
        needs: Of the job.
        others: Jobs that run at the same time.
        constants: Of the GPU.
    """
    return mps_slowdowns([(needs, 1.0), *others], constants)[0]


def mps_slowdowns(present: Companions, constants: Constants) -> list[float]:
    """Return the slowdown of each job's kernels beside the others; at least 1.

    Args:
        present: All jobs that run at the same time.
        constants: Of the GPU.
    """
    here = [(each, part) for each, part in present if part > 0]
    if len(here) < 2:  # noqa: PLR2004 - one job has no competition
        return [1.0] * len(present)
    found = iter(_ConcurrentJobs(here, constants).solve())
    return [next(found) if part > 0 else 1.0 for _each, part in present]


def time_slice_slowdown(others_waiting: float, constants: Constants) -> float:
    """Return the slowdown of kernels while contexts take turns.

    Args:
        others_waiting: Mean number of other contexts that have work.
        constants: Of the GPU.
    """
    return (1 + others_waiting) * (1 + constants.switch_overhead * min(1.0, others_waiting))


def fair_level(wanted: Sequence[float]) -> float:
    """Return the max-min fair level of a whole of 1: lower demands are met, higher ones get this; 1 if all are met."""
    # In ascending order: what a small demand leaves of its equal share is divided among the larger ones.
    left, rest = 1.0, len(wanted)
    for each in sorted(wanted):
        if each > left / rest:
            return left / rest
        left, rest = left - each, rest - 1
    return 1.0


class _ConcurrentJobs:
    """Jobs that run at the same time."""

    def __init__(self, present: Companions, constants: Constants) -> None:
        self._jobs = [each for each, _part in present]
        self._parts = [part for _each, part in present]
        self._constants = constants
        level = fair_level([each.sm * part for each, part in present])
        self._room = [min(1.0, level / each.sm) if each.sm > 0 else 1.0 for each in self._jobs]
        self._own = [
            each.own / room * (1 + self._l1(at))
            for at, (each, room) in enumerate(zip(self._jobs, self._room, strict=True))
        ]
        # Hit rate alone; None for a job that the L2 cache saves nothing.
        self._alone = [
            None
            if each.footprint <= 0 or each.lost_memory <= each.memory
            else hits([Lines(each.footprint, touches_of(each))], each.stream)[0]
            for each in self._jobs
        ]
        self._pipes = [pipe for pipe in PIPES if any(each.pipes.get(pipe, 0.0) > 0 for each in self._jobs)]

    def solve(self) -> list[float]:
        """Return the slowdown of each job once slowdowns and hit rates agree."""
        # Slower jobs touch the cache less, and kept lines make jobs faster: both are recomputed from each other in turn.
        times = [1.0] * len(self._jobs)
        for _ in range(_PASSES):
            before, times = times, self._divide_resources(self._uses(times))
            if max(abs(now - was) for now, was in zip(times, before, strict=True)) < _SETTLED:
                break
        company = sum(self._parts)
        overhead = self._constants.crowd_overhead
        return [
            max(1.0, time * (1 + overhead * (company - part))) for time, part in zip(times, self._parts, strict=True)
        ]

    def _l1(self, at: int) -> float:
        """Return the slowdown of a job by other jobs in its L1 cache, from its sensitivity to the carve-out.

        Blocks are placed where room is, so two jobs meet only if both together need more than all multiprocessors. The L1 use
        of others is not measured: a job that itself depends on L1 is assumed to fill its half.
        """
        meeting = sum(
            part * _shared_multiprocessors(self._jobs[at], each) * (1.0 if each.l1 > _NOTICEABLE else 0.0)
            for other, (each, part) in enumerate(zip(self._jobs, self._parts, strict=True))
            if other != at
        )
        return self._constants.l1_weight * self._jobs[at].l1 * min(1.0, meeting)

    def _divide_resources(self, uses: Sequence[Sequence[float]]) -> list[float]:
        """Divide each resource until no job gets slower."""
        # From the times without neighbours on, times only grow (`max` below), so the iteration ends.
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
        """Return each job's use of memory and of each pipe, relative to its time alone, at these slowdowns."""
        kept, lost_l1 = self._hit_rates(times), [self._lost_l1(at, times) for at in range(len(times))]
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

    def _hit_rates(self, times: Sequence[float]) -> list[float]:
        """Return each job's hit rate in the L2 cache relative to its hit rate alone."""
        if all(alone is None for alone in self._alone):
            return [1.0] * len(times)
        paces = [part / time for part, time in zip(self._parts, times, strict=True)]
        lines = [
            Lines(self._constants.l2_weight * each.footprint * room, touches_of(each) * pace)
            for each, room, pace in zip(self._jobs, self._room, paces, strict=True)
        ]
        stream = sum(each.stream * pace for each, pace in zip(self._jobs, paces, strict=True))
        together = hits(lines, stream)
        return [
            1.0 if not alone else min(1.0, found / alone) for found, alone in zip(together, self._alone, strict=True)
        ]

    def _lost_l1(self, at: int, times: Sequence[float]) -> float:
        """Return the part of its L1 cache that a job loses to reads of others on its multiprocessors before it returns."""
        own = self._jobs[at]
        if own.l1_reuse <= 0:
            return 0.0
        passing = sum(
            part
            / time
            * each.pipes.get(Resource.L2, 0.0)
            * _shared_multiprocessors(own, each)
            * own.spread
            / each.spread
            for other, (each, part, time) in enumerate(zip(self._jobs, self._parts, times, strict=True))
            if other != at and each.spread > 0
        )
        return 1 - math.exp(-own.l1_reuse * passing * times[at])


def touches_of(needs: Needs) -> float:
    """Return how often a job returns to lines of the L2 cache; 1 per grain if its L2 bandwidth is unknown."""
    rate = needs.pipes.get(Resource.L2)
    return needs.grain * (1.0 if rate is None else max(_LEAST_RATE, rate - needs.stream))


def _shared_multiprocessors(needs: Needs, other: Needs) -> float:
    """Return the share of a job's multiprocessors that also have blocks of another job."""
    return max(0.0, min(1.0, (needs.spread + other.spread - 1) / needs.spread)) if needs.spread > 0 else 0.0
