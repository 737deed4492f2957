"""Metrics as Prometheus's text, written by its own library. A replica loads this module at the first scrape only."""

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pgpu.functions.requests.request_queue import DurationHistogram, ReplicaMetrics

Gauges = Callable[[], Iterator[tuple[str, str, int]]]
"""Yields function, label and count: requests `in_flight` or `queued`, replicas by phase."""


class ReplicaMetricsCollector(Collector):
    """The metric families of a replica."""

    def __init__(self, metrics: ReplicaMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        metrics = self._metrics
        answers = CounterMetricFamily("pgpu_function_requests", "Requests answered.", labels=["status", "code"])
        for (status, code), count in sorted(metrics.answers.items()):
            answers.add_metric([str(status), code], count)
        yield answers
        yield _histogram("pgpu_function_request_seconds", "From admission to answer.", metrics.total)
        yield _histogram("pgpu_function_exec_seconds", "In the worker: reading, calling, writing.", metrics.exec)
        yield CounterMetricFamily("pgpu_function_worker_starts", "Workers that became ready.", metrics.starts)
        yield CounterMetricFamily("pgpu_function_worker_restarts", "Workers that ended unasked.", metrics.restarts)
        for name, (description, value) in metrics.gauges.items():
            yield GaugeMetricFamily(name, description, value())


class GatewayMetrics(Collector):
    """Counts of one gateway. Labels are bounded: the server's functions, HTTP's statuses, pgpu's codes."""

    def __init__(self) -> None:
        self._answers: Counter[tuple[str, int, str]] = Counter()
        self._durations = DurationHistogram()
        self.starts: Counter[str] = Counter()
        self.gauges: Gauges = lambda: iter(())

    def count_answer(self, function: str, status: int, total_seconds: float, code: str = "") -> None:
        """Count an answer; a request that its caller abandoned counts as 499."""
        self._answers[function, status, code] += 1
        self._durations.add(total_seconds)

    def forget(self, function: str) -> None:
        """Drop the counts of a removed function, which would otherwise stay for the life of the process."""
        self._answers = Counter({labels: count for labels, count in self._answers.items() if labels[0] != function})
        self.starts.pop(function, None)

    def collect(self) -> Iterator[Metric]:
        answers = CounterMetricFamily(
            "pgpu_gateway_requests", "Requests answered.", labels=["function", "status", "code"]
        )
        for (function, status, code), count in sorted(self._answers.items()):
            answers.add_metric([function, str(status), code], count)
        yield answers
        yield _histogram("pgpu_gateway_request_seconds", "From admission to answer.", self._durations)
        starts = CounterMetricFamily("pgpu_gateway_replica_starts", "Replicas asked for.", labels=["function"])
        for function, count in sorted(self.starts.items()):
            starts.add_metric([function], count)
        yield starts
        gauge = GaugeMetricFamily(
            "pgpu_gateway_now", "Requests that wait or run, replicas by phase.", labels=["function", "what"]
        )
        for function, label, count in self.gauges():
            gauge.add_metric([function, label], count)
        yield gauge


def metrics_text(collector: Collector) -> bytes:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry)


def _histogram(name: str, description: str, durations: DurationHistogram) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, description, durations.buckets(), durations.sum_seconds)
