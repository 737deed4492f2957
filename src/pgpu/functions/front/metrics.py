"""What a replica counts, and the text that Prometheus scrapes.

Counting costs a dictionary's entry for each request; the library's own counters, with their locks, would cost ten times
that, so it writes only the text. It refuses to count by anything that a caller chooses, such as a path.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

_BOUNDS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Durations:
    """A histogram of seconds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS_SECONDS) + 1)
        self._sum_seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(_BOUNDS_SECONDS, seconds)] += 1
        self._sum_seconds += seconds

    def family(self, name: str, documentation: str) -> HistogramMetricFamily:
        """Write it for Prometheus."""
        total, buckets = 0, []
        for bound, count in zip([*map(str, _BOUNDS_SECONDS), "+Inf"], self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        return HistogramMetricFamily(name, documentation, buckets, self._sum_seconds)


class Metrics(Collector):
    """Counts of one replica."""

    def __init__(self) -> None:
        self._answers: Counter[tuple[int, str]] = Counter()
        self._total, self._exec = Durations(), Durations()
        self.starts = 0
        self.restarts = 0
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        """Name, meaning, and how its value is found when it is asked for."""

    def answered(self, status: int, total_seconds: float, exec_seconds: float, code: str = "") -> None:
        """Count an answer; a request that its caller left counts as 499."""
        self._answers[status, code] += 1
        self._total.add(total_seconds)
        if exec_seconds:
            self._exec.add(exec_seconds)

    def text(self) -> bytes:
        """Write everything as Prometheus reads it."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the families; called by the library."""
        answers = CounterMetricFamily("pgpu_function_requests", "Requests answered.", labels=["status", "code"])
        for (status, code), count in sorted(self._answers.items()):
            answers.add_metric([str(status), code], count)
        yield answers
        yield self._total.family("pgpu_function_request_seconds", "From admission to answer.")
        yield self._exec.family("pgpu_function_exec_seconds", "In the worker: reading, calling, writing.")
        yield CounterMetricFamily("pgpu_function_worker_starts", "Workers that became ready.", self.starts)
        yield CounterMetricFamily("pgpu_function_worker_restarts", "Workers that ended unasked.", self.restarts)
        for name, (meaning, value) in self.gauges.items():
            yield GaugeMetricFamily(name, meaning, value())
