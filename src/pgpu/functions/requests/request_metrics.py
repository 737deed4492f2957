"""What a replica counts.

Counting costs a dictionary's entry for each request; the counters of Prometheus's library, with their locks, would cost ten
times that, so it writes only the text. It refuses to count by anything that a caller chooses, such as a path.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable

_BOUNDS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class DurationHistogram:
    """A histogram of seconds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS_SECONDS) + 1)
        self.sum_seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(_BOUNDS_SECONDS, seconds)] += 1
        self.sum_seconds += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return how many were up to each bound."""
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
        """Name, meaning, and how its value is found when it is asked for."""

    def answered(self, status: int, total_seconds: float, exec_seconds: float, code: str = "") -> None:
        """Count an answer; a request that its caller left counts as 499."""
        self.answers[status, code] += 1
        self.total.add(total_seconds)
        if exec_seconds:
            self.exec.add(exec_seconds)
