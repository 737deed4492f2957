"""The text that Prometheus scrapes, written by its own library, which is loaded when somebody scrapes.

It refuses to count: what is counted is told to it.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pgpu.functions.requests.request_metrics import DurationHistogram, ReplicaMetrics


def metrics_text(metrics: ReplicaMetrics) -> bytes:
    """Write everything as Prometheus reads it."""
    registry = CollectorRegistry()
    registry.register(ReplicaMetricsCollector(metrics))
    return generate_latest(registry)


class ReplicaMetricsCollector(Collector):
    """Everything that a replica counts."""

    def __init__(self, metrics: ReplicaMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Yield the families; called by the library."""
        metrics = self._metrics
        answers = CounterMetricFamily("pgpu_function_requests", "Requests answered.", labels=["status", "code"])
        for (status, code), count in sorted(metrics.answers.items()):
            answers.add_metric([str(status), code], count)
        yield answers
        yield histogram_family("pgpu_function_request_seconds", "From admission to answer.", metrics.total)
        yield histogram_family("pgpu_function_exec_seconds", "In the worker: reading, calling, writing.", metrics.exec)
        yield CounterMetricFamily("pgpu_function_worker_starts", "Workers that became ready.", metrics.starts)
        yield CounterMetricFamily("pgpu_function_worker_restarts", "Workers that ended unasked.", metrics.restarts)
        for name, (meaning, value) in metrics.gauges.items():
            yield GaugeMetricFamily(name, meaning, value())


def histogram_family(name: str, meaning: str, durations: DurationHistogram) -> HistogramMetricFamily:
    """Write durations for Prometheus."""
    return HistogramMetricFamily(name, meaning, durations.buckets(), durations.sum_seconds)
