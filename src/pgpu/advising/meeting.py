"""A job beside an antagonist: how well a guess at the job's needs explains what both lost.

What the antagonist needs is known by how it is made. It refuses to guess.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pgpu.advising.constants import Constants
from pgpu.advising.contention import mps_slowdowns
from pgpu.advising.needs import Needs
from pgpu.model import Antagonist, Contest, Resource

TYPICAL_RATE = 0.5
"""Of the memory's bandwidth that an antagonist on a tenth of the multiprocessors draws, where nobody measured it. Unproven."""

_HALF_BLOCK = 0.25
"""Of a multiprocessor's room: a block of 512 threads, of 2,048."""

_CONSTANTS = Constants()


@dataclass(frozen=True, slots=True)
class ObservedContest:
    """A contest, and what the antagonist in it needs."""

    contest: Contest
    antagonist: Needs


def antagonist_needs(contest: Contest, l2_rate: float | None = None) -> Needs:
    """Return what an antagonist needs, which is known by how it is made.

    Args:
        contest: In which it was.
        l2_rate: What the L2 cache gives in a second, of what the memory does; None is not known.
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


def fit_error(needs: Needs, met: Sequence[ObservedContest]) -> float:
    """Return how badly these needs explain what was lost: the sum of the squares of the ratios' logarithms."""
    return sum(_error(needs, each) for each in met)


def _error(needs: Needs, met: ObservedContest) -> float:
    mine, its = mps_slowdowns([(needs, 1.0), (met.antagonist, 1.0)], _CONSTANTS)
    return math.log(mine / met.contest.slowdown) ** 2 + math.log(its / met.contest.antagonist_slowdown) ** 2
