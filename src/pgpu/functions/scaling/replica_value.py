"""What an idle replica is worth, so that the least worth by the byte goes first when memory is short.

GreedyDual-Size-Frequency: how often it is called times what a cold start costs, by its bytes, on top of a clock that
rises to the worth of whatever went last: so what was called often long ago goes one day, too. It refuses to choose: the
engine does, which knows what is short.

Source: Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy", HPL-98-69R1;
for functions: Fuerst and Sharma, "FaasCache", ASPLOS 2021.
"""

import math

_HALF_LIFE_SECONDS = 600.0


class ValueClock:
    """The common clock of a gateway's functions."""

    def __init__(self) -> None:
        self.worth = 0.0
        """Of a byte: what the last replica that was taken was worth. It never falls."""

    def taken(self, value: float, size_bytes: int) -> None:
        """Take note that a replica of this value went."""
        self.worth = max(self.worth, value / max(1, size_bytes))


def replica_value(worth: float, frequency: float, cold_seconds: float, size_bytes: int) -> float:
    """Return what it saves to keep a replica.

    Args:
        worth: What the clock said when it was called last: with today's it would never grow old.
        frequency: How often it is called, 0 or more.
        cold_seconds: What a start of it costs, 0 or more.
        size_bytes: What it holds; of 0 counts as 1.
    """
    return worth * max(1, size_bytes) + frequency * cold_seconds


class Frequency:
    """How often somebody calls: a count that halves in ten minutes."""

    def __init__(self, count: float = 0.0, at_seconds: float = 0.0) -> None:
        """Go on from a count that was so high then, or from nothing."""
        self._count, self._at_seconds = count, at_seconds

    def note(self, now_seconds: float) -> None:
        """Count one call."""
        self._count = self.at(now_seconds) + 1.0
        self._at_seconds = now_seconds

    def at(self, now_seconds: float) -> float:
        """Return the count as it is now, 0 or more."""
        age = max(0.0, now_seconds - self._at_seconds)
        return self._count * math.exp2(-age / _HALF_LIFE_SECONDS)
