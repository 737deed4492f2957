"""How much an idle replica is worth: when memory is short, the engine takes the lease with the lowest value per byte.

Greedy-Dual-Size-Frequency: call frequency times the cost of a cold start, per byte, on top of a clock that rises to the value of
the last evicted replica. So a function that was called often long ago becomes evictable, too.

Source: Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy", HPL-98-69R1; for functions:
Fuerst and Sharma, "FaasCache", ASPLOS 2021.
"""

import math

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

    def __init__(self) -> None:
        self._count = self._at_seconds = 0.0

    def note(self, now_seconds: float) -> None:
        """Count one call."""
        self._count = self.at(now_seconds) + 1.0
        self._at_seconds = now_seconds

    def at(self, now_seconds: float) -> float:
        """Return the decayed count, 0 or more."""
        age = max(0.0, now_seconds - self._at_seconds)
        return self._count * math.exp2(-age / _HALF_LIFE_SECONDS)
