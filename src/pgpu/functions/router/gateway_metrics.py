"""What the gateway counts, for Prometheus.

It refuses labels without bounds: functions are the server's, statuses are HTTP's, codes are ours.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pgpu.functions.requests.metrics_text import histogram_family
from pgpu.functions.requests.request_metrics import DurationHistogram

Gauges = Callable[[], Iterator[tuple[str, str, int]]]
"""Yields function, word and count: requests `in_flight` or `queued`, replicas by phase."""


class GatewayMetrics(Collector):
    """Counts of one gateway."""

    def __init__(self) -> None:
        self._answers: Counter[tuple[str, int, str]] = Counter()
        self._durations = DurationHistogram()
        self.starts: Counter[str] = Counter()
        self.gauges: Gauges = lambda: iter(())

    def answered(self, function: str, status: int, total_seconds: float, code: str = "") -> None:
        """Count an answer; a request that its caller left counts as 499."""
        self._answers[function, status, code] += 1
        self._durations.add(total_seconds)

    def forget(self, function: str) -> None:
        """Forget a function that is no more: names come and go, and each would stay for good."""
        self._answers = Counter({labels: count for labels, count in self._answers.items() if labels[0] != function})
        self.starts.pop(function, None)

    def text(self) -> bytes:
        """Write everything as Prometheus reads it."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the families; called by the library."""
        answers = CounterMetricFamily(
            "pgpu_gateway_requests", "Requests answered.", labels=["function", "status", "code"]
        )
        for (function, status, code), count in sorted(self._answers.items()):
            answers.add_metric([function, str(status), code], count)
        yield answers
        yield histogram_family("pgpu_gateway_request_seconds", "From admission to answer.", self._durations)
        starts = CounterMetricFamily("pgpu_gateway_replica_starts", "Replicas asked for.", labels=["function"])
        for function, count in sorted(self.starts.items()):
            starts.add_metric([function], count)
        yield starts
        gauge = GaugeMetricFamily(
            "pgpu_gateway_now", "Requests that wait or run, replicas by phase.", labels=["function", "what"]
        )
        for function, what, count in self.gauges():
            gauge.add_metric([function, what], count)
        yield gauge
