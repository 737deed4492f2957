"""When a function is called again: learned from the times between its calls, to be warm then and not before.

A histogram of idle times by the minute says after how long the next call comes at the earliest and at the latest; where it
says nothing clear, the declared idle time decides. It refuses to guess from few calls.

Source: the hybrid histogram policy of Shahrad et al., "Serverless in the Wild", USENIX ATC 2020, without its ARIMA part,
which serves functions that are called less than once in four hours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_BIN_SECONDS = 60.0
_BINS = 240
_FEWEST_CALLS = 10
_HEAD, _TAIL = 0.05, 0.99
_MARGIN = 0.1
"""Of both ends: earlier and later than was ever seen."""

_MOST_OUTSIDE = 0.5
"""With more of the idle times longer than the histogram is, it says nothing."""

_FLATTEST = 2.0
"""Coefficient of variation of the bins' counts below which the histogram shows no pattern."""


@dataclass(frozen=True, slots=True)
class WarmWindow:
    """When after a call a replica is wanted though nobody calls."""

    from_seconds: float = 0.0
    """Not before so long after the last call; 0: from then on."""

    until_seconds: float = 300.0
    """And no longer than so long after it."""

    def is_wanted(self, idle_seconds: float) -> bool:
        """Say whether a replica is wanted so long after the last call."""
        return self.from_seconds <= idle_seconds < self.until_seconds


class ArrivalHistory:
    """The idle times of one function."""

    def __init__(self, counts: Sequence[int] = ()) -> None:
        """Go on from what `counts` said, or from nothing."""
        fits = len(counts) == _BINS + 1 and all(count >= 0 for count in counts)
        self._counts = list(counts) if fits else [0] * (_BINS + 1)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many idle times fell into each minute, those past the last one at the end."""
        return tuple(self._counts)

    def note(self, idle_seconds: float) -> None:
        """Take note of one time between calls; those below a minute are no idle times for it."""
        if idle_seconds >= _BIN_SECONDS:
            self._counts[min(_BINS, int(idle_seconds / _BIN_SECONDS))] += 1

    def warmth(self, declared_seconds: float) -> WarmWindow:
        """Say when to be warm.

        Args:
            declared_seconds: How long a replica stays where nothing was learned.

        Returns:
            A warmth whose end is never before its beginning.
        """
        inside = self._counts[:_BINS]
        total, outside = sum(inside), self._counts[_BINS]
        if total < _FEWEST_CALLS or outside > _MOST_OUTSIDE * (total + outside) or _variation(inside) < _FLATTEST:
            return WarmWindow(0.0, declared_seconds)
        head = _percentile(inside, total, _HEAD) * _BIN_SECONDS * (1 - _MARGIN)
        tail = (_percentile(inside, total, _TAIL) + 1) * _BIN_SECONDS * (1 + _MARGIN)
        return WarmWindow(0.0 if head < 2 * _BIN_SECONDS else head, tail)


def _percentile(bins: Sequence[int], total: int, part: float) -> int:
    due, seen = part * total, 0
    for index, count in enumerate(bins):
        seen += count
        if seen >= due:
            return index
    return len(bins) - 1


def _variation(bins: Sequence[int]) -> float:
    mean = sum(bins) / len(bins)
    variance = sum((count - mean) ** 2 for count in bins) / len(bins)
    return math.sqrt(variance) / mean
