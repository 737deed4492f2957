"""Counts of one replica.

Counting costs one dictionary entry per request. The counters of Prometheus's library, with their locks, would cost ten times
as much; the library only writes the text (`prometheus_metrics`). Labels are bounded: never a value that a caller chooses.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable

_BOUNDS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class DurationHistogram:
    """A histogram of durations in seconds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS_SECONDS) + 1)
        self.sum_seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(_BOUNDS_SECONDS, seconds)] += 1
        self.sum_seconds += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative count of each bound."""
        total, buckets = 0, []
        for bound, count in zip([*map(str, _BOUNDS_SECONDS), "+Inf"], self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets


class ReplicaMetrics:
    """Counts of one replica."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[int, str]] = Counter()
        """By status and code."""

        self.total, self.exec = DurationHistogram(), DurationHistogram()
        self.starts = 0
        self.restarts = 0
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        """Description and current value, by name."""

    def count_answer(self, status: int, total_seconds: float, exec_seconds: float, code: str = "") -> None:
        """Count an answer; a request that its caller abandoned counts as 499."""
        self.answers[status, code] += 1
        self.total.add(total_seconds)
        if exec_seconds:
            self.exec.add(exec_seconds)
