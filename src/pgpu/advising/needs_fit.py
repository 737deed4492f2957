"""Fit of a job's needs to what it and antagonists lost beside each other.

The needs of an antagonist follow from how it is made. The figures of the job are varied one after the other, by less each time
that neither direction helps (coordinate descent), starting from what each contest alone suggests: there are few contests, and
each depends on all figures, since a job slowed down by one resource uses less of the others.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import product

from pgpu.advising.contention import Constants, Lines, Needs, hits, mps_slowdowns, touches_of
from pgpu.model import Antagonist, Contest, Resource
from pgpu.structs import Struct, replace

# Memory bandwidth that an antagonist on a tenth of the multiprocessors uses, if not measured; a share of all. Unproven.
TYPICAL_RATE = 0.5

# A block of 512 threads, of the 2,048 that a multiprocessor holds.
_HALF_BLOCK = 0.25

_CONSTANTS = Constants()

_ROUNDS = 14
_ENOUGH = 1e-5

# Factors on a step that helped, and on one that did not.
_FASTER, _FINER = 1.5, 0.5

_STEPS = {
    "own": 0.2,
    "fp32": 0.1,
    "l2": 0.1,
    "stream": 0.2,
    "footprint": 0.2,
    "grain": 1.0,
    "l1_reuse": 1.0,
    "l1_reads": 0.5,
    "l1_memory": 0.7,
}

# Figures that are at most 1.
_PARTS_OF_ALL = ("own", "fp32", "l2")

_OF_L1 = ("l1_reuse", "l1_reads", "l1_memory")
_LEAST_GRAIN = 0.5

# Footprints and grains: of lines that are read as a whole, and sector by sector.
_CACHE_STARTS = tuple(product((0.2, 0.6, 0.95, 1.1, 1.8), (1.0, 4.0)))

_L1_STARTS = tuple(product((0.5, 3.0), (0.3, 1.5), (0.0, 1.5, 4.0)))
_LEAST_STREAM = 0.02

# Weight of the condition that the largest need is 1: it determines the job's time alone.
_WEIGHT_OF_ALONE = 2.0

_Figures = Mapping[str, float]


class ObservedContest(Struct, frozen=True):
    """A contest, and the needs of the antagonist in it."""

    contest: Contest
    antagonist: Needs


def antagonist_needs(contest: Contest, l2_rate: float | None = None) -> Needs:
    """Return the needs of an antagonist.

    Args:
        contest: In which it ran.
        l2_rate: Bandwidth of the L2 cache relative to that of memory; None if unknown.
    """
    part = 1.0 if contest.antagonist_fraction is None else min(1.0, max(0.0, contest.antagonist_fraction))
    if contest.antagonist is Antagonist.ROOM:
        return Needs()
    if contest.antagonist is Antagonist.COMPUTE:
        return Needs(sm=_HALF_BLOCK, pipes={Resource.FP32: part})
    if contest.antagonist is Antagonist.L2_BANDWIDTH:
        return Needs(sm=_HALF_BLOCK, pipes={Resource.L2: part})
    rate = max(0.0, TYPICAL_RATE if contest.antagonist_rate is None else contest.antagonist_rate)
    pipes = {Resource.L2: min(1.0, rate / l2_rate)} if l2_rate else {}
    room = min(_HALF_BLOCK, contest.sm_fraction / 2)
    if contest.antagonist is Antagonist.L2:
        return Needs(room, contest.sm_fraction, pipes=pipes, lost_memory=rate, footprint=part)
    used = min(1.0, rate) if contest.antagonist_rate is not None or contest.antagonist_fraction is None else part
    stream = used / l2_rate if l2_rate else 0.0
    return Needs(room, contest.sm_fraction, min(1.0, used + 0.03), pipes, memory=used, lost_memory=used, stream=stream)


def fit_error(needs: Needs, contests: Sequence[ObservedContest]) -> float:
    """Return the sum of squared log ratios of predicted over measured slowdowns, of the job and of the antagonists."""
    total = 0.0
    for each in contests:
        mine, its = mps_slowdowns([(needs, 1.0), (each.antagonist, 1.0)], _CONSTANTS)
        total += math.log(mine / each.contest.slowdown) ** 2 + math.log(its / each.contest.antagonist_slowdown) ** 2
    return total


class _Search(Struct, frozen=True):
    first: Needs
    contests: Sequence[ObservedContest]
    l2_rate: float
    known: frozenset[str]
    """Figures known from counters, which are not varied."""

    lives_in_l1: bool

    def best(self) -> Needs:
        """Return the needs with the least error."""
        figures = min(self._starts(), key=self._loss)
        least, steps = self._loss(figures), dict(_STEPS)
        names = [name for name in _STEPS if name not in self.known and (self.lives_in_l1 or name not in _OF_L1)]
        for _ in range(_ROUNDS):
            for name in names:
                tried = min((self._step(figures, name, step) for step in (steps[name], -steps[name])), key=self._loss)
                loss = self._loss(tried)
                steps[name] *= _FASTER if loss < least else _FINER
                if loss < least:
                    figures, least = tried, loss
            if least < _ENOUGH:
                break
        return self._needs(figures)

    def _starts(self) -> list[_Figures]:
        first = self.first
        l2 = first.pipes.get(Resource.L2, 0.0)
        found = {
            "own": first.own,
            "fp32": first.pipes.get(Resource.FP32, 0.0),
            "l2": l2,
            "stream": min(first.stream * self.l2_rate, first.memory),
            "footprint": first.footprint,
            "grain": first.grain,
            **dict.fromkeys(_OF_L1, 0.0),
        }
        if self.lives_in_l1:
            return [found, *({**found, **dict(zip(_OF_L1, each, strict=True))} for each in _L1_STARTS)]
        stream = max(_LEAST_STREAM, min(found["stream"], l2 * self.l2_rate / 2))
        others = [{**found, "footprint": size, "grain": grain, "stream": stream} for size, grain in _CACHE_STARTS]
        return [
            found,
            *({name: each[name] if name not in self.known else found[name] for name in found} for each in others),
        ]

    def _step(self, figures: _Figures, name: str, step: float) -> _Figures:
        moved = max(_LEAST_GRAIN if name == "grain" else 0.0, figures[name] + step)
        return {**figures, name: min(1.0, moved) if name in _PARTS_OF_ALL else moved}

    def _needs(self, figures: _Figures) -> Needs:
        # L2 traffic is either streamed, or read again from the cache; of the latter, misses alone go to memory.
        stream = figures["stream"] / self.l2_rate
        l2 = max(figures["l2"], stream)
        reads = l2 * self.l2_rate - figures["stream"]
        needs = replace(
            self.first,
            own=figures["own"],
            pipes={**self.first.pipes, Resource.FP32: figures["fp32"], Resource.L2: l2},
            footprint=figures["footprint"],
            grain=figures["grain"],
            stream=stream,
            lost_memory=figures["stream"] + reads,
            l1=0.0 if self.lives_in_l1 else self.first.l1,
            **{name: figures[name] for name in _OF_L1},
        )
        alone = hits([Lines(needs.footprint, touches_of(needs))], stream)[0] if needs.footprint > 0 else 1.0
        return replace(needs, memory=figures["stream"] + reads * (1 - alone))

    def _loss(self, figures: _Figures) -> float:
        needs = self._needs(figures)
        longest = max(needs.own, needs.memory, *needs.pipes.values(), 1e-3)
        return fit_error(needs, self.contests) + _WEIGHT_OF_ALONE * math.log(longest) ** 2


def refine_needs(
    needs: Needs,
    contests: Sequence[ObservedContest],
    l2_rate: float | None,
    known: frozenset[str],
    *,
    lives_in_l1: bool,
) -> Needs:
    """Return needs that explain the contests at least as well.

    Args:
        needs: First estimate, from each contest alone.
        contests: The contests. Without any, or with unknown L2 bandwidth, nothing is refined.
        l2_rate: Bandwidth of the L2 cache relative to that of memory.
        known: Figures known from counters, of `own`, `fp32`, `l2`, `stream`, `footprint`.
        lives_in_l1: Whether the job is slower with a smaller L1 cache.
    """
    return _Search(needs, contests, l2_rate, known, lives_in_l1).best() if contests and l2_rate else needs
