"""Past calls of a function: when the next one is expected, and how much an idle replica is worth.

`ArrivalHistory`: a histogram of idle times, in minutes, gives the earliest and the latest time of the next call. With few calls,
or without a clear pattern, the declared idle time applies instead.

`replica_value`: when memory is short, the engine takes the lease with the lowest value per byte. Greedy-Dual-Size-Frequency: call
frequency times the cost of a cold start, per byte, on top of a clock that rises to the value of the last evicted replica. So a
function that was called often long ago becomes evictable, too.

Source: the hybrid histogram policy of Shahrad et al., "Serverless in the Wild", USENIX ATC 2020, without its ARIMA part, which
serves functions that are called less than once in four hours. Cherkasova, "Improving WWW Proxies Performance with
Greedy-Dual-Size-Frequency Caching Policy", HPL-98-69R1; for functions: Fuerst and Sharma, "FaasCache", ASPLOS 2021.
"""

import math
from collections.abc import Sequence

from pgpu.structs import Struct

# Histogram of four hours in minutes, and the percentiles of its window, as in Shahrad et al.
_BIN_SECONDS = 60.0
_BINS = 240
_HEAD, _TAIL = 0.05, 0.99
# With fewer idle times there is no prediction.
_FEWEST_CALLS = 10
# Relative margin at both ends of the window.
_MARGIN = 0.1

# If a larger part of the idle times is longer than the histogram, there is no prediction.
_MOST_OUTSIDE = 0.5

# Coefficient of variation of the bins' counts below which the histogram shows no pattern.
_FLATTEST = 2.0


class WarmWindow(Struct, frozen=True):
    """When a replica is kept without calls, in seconds after the last call."""

    from_seconds: float = 0.0
    until_seconds: float = 300.0

    # Half-open, so that a window of no length keeps no replica.
    def is_wanted(self, idle_seconds: float) -> bool:
        """Whether a replica is kept this long after the last call."""
        return self.from_seconds <= idle_seconds < self.until_seconds


class ArrivalHistory:
    """The idle times of one function."""

    def __init__(self, counts: Sequence[int] = ()) -> None:
        """Continue from stored `counts`; an unusable sequence counts as none."""
        fits = len(counts) == _BINS + 1 and all(count >= 0 for count in counts)
        self._counts = list(counts) if fits else [0] * (_BINS + 1)

    @property
    def counts(self) -> tuple[int, ...]:
        """Idle times by minute; the last element counts the longer ones."""
        return tuple(self._counts)

    def note(self, idle_seconds: float) -> None:
        """Add one time between two calls; times below a minute are not idle times."""
        if idle_seconds >= _BIN_SECONDS:
            self._counts[min(_BINS, int(idle_seconds / _BIN_SECONDS))] += 1

    def warmth(self, declared_seconds: float) -> WarmWindow:
        """Return the window for the next call.

        Args:
            declared_seconds: How long a replica stays if there is no prediction.

        Returns:
            A window that never ends before it begins.
        """
        inside, outside = self._counts[:_BINS], self._counts[_BINS]
        total = sum(inside)
        if total < _FEWEST_CALLS or outside > _MOST_OUTSIDE * (total + outside):
            return WarmWindow(0.0, declared_seconds)
        mean = total / _BINS
        if math.sqrt(sum((count - mean) ** 2 for count in inside) / _BINS) / mean < _FLATTEST:
            return WarmWindow(0.0, declared_seconds)
        # Bins are minutes rounded down, so the end of the window is the end of its last bin.
        head = _percentile(inside, total, _HEAD) * _BIN_SECONDS * (1 - _MARGIN)
        tail = (_percentile(inside, total, _TAIL) + 1) * _BIN_SECONDS * (1 + _MARGIN)
        # A window that begins within two minutes would end a replica and start another one almost at once.
        return WarmWindow(0.0 if head < 2 * _BIN_SECONDS else head, tail)


def _percentile(bins: Sequence[int], total: int, part: float) -> int:
    due, seen = part * total, 0
    for index, count in enumerate(bins):
        seen += count
        if seen >= due:
            return index
    return len(bins) - 1


_HALF_LIFE_SECONDS = 600.0


class ValueClock:
    """The common clock of a gateway's functions; only evictions move it."""

    def __init__(self) -> None:
        self.worth = 0.0
        """Value per byte of the last evicted replica. Never falls."""

    def note_eviction(self, value: float, size_bytes: int) -> None:
        """Record that a replica of this value was evicted."""
        self.worth = max(self.worth, value / max(1, size_bytes))


def replica_value(worth: float, frequency: float, cold_seconds: float, size_bytes: int) -> float:
    """Return the value of keeping a replica.

    Args:
        worth: The clock at its last call; with the clock of today the value would never age.
        frequency: Call frequency, 0 or more.
        cold_seconds: Duration of a cold start, 0 or more.
        size_bytes: Its memory; 0 counts as 1.
    """
    return worth * max(1, size_bytes) + frequency * cold_seconds


class Frequency:
    """Call frequency: a count with a half-life of ten minutes."""

    def __init__(self, count: float = 0.0, at_seconds: float = 0.0) -> None:
        """Continue from a stored count and its time, or from zero."""
        self._count, self._at_seconds = count, at_seconds

    def note(self, now_seconds: float) -> None:
        """Count one call."""
        self._count = self.at(now_seconds) + 1.0
        self._at_seconds = now_seconds

    def at(self, now_seconds: float) -> float:
        """Return the decayed count, 0 or more."""
        age = max(0.0, now_seconds - self._at_seconds)
        return self._count * math.exp2(-age / _HALF_LIFE_SECONDS)
