"""Metrics for Prometheus: GPUs, jobs and the server itself.

Names and units are Prometheus' (base units, `_total` for counters); the labels of a GPU are those of NVIDIA's
dcgm-exporter (`gpu`, `UUID`, `modelName`), so that both join in one query. A caller gets the series of the jobs that it may see.
Sources: prometheus.io/docs/practices/naming, github.com/NVIDIA/dcgm-exporter.
"""

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pgpu.distribution import installed_version
from pgpu.errors import NodeError
from pgpu.model import Job, JobState
from pgpu.services.job_reports import report_job
from pgpu.services.job_service import JobService
from pgpu.services.messages import GpuReport, JobReport

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_GPU_LABELS = ("gpu", "UUID", "modelName")
_SLICE_LABELS = ("job", "name", "uid", "UUID")
# Label of requests without a route: a path of the client's choice would add a series for each request.
_UNMATCHED = "none"
_LATENCY_BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ServerMetrics:
    """Counters of one server process; `text` adds the state of ledger and GPUs at the moment of the scrape."""

    def __init__(self) -> None:
        # Otherwise every counter has a second series, `_created`.
        disable_created_metrics()  # type: ignore[no-untyped-call] # the library has no type for it
        self._own = CollectorRegistry()
        ProcessCollector(registry=self._own)
        self._requests = Counter(
            "pgpu_http_requests", "Requests answered.", ("method", "route", "code"), registry=self._own
        )
        self._durations = Histogram(
            "pgpu_http_request_duration_seconds",
            "From a request's arrival to the last byte of its answer, streams and waits left out.",
            ("route",),
            registry=self._own,
            buckets=_LATENCY_BUCKETS_SECONDS,
        )

    def record(self, method: str, route: str, code: int, seconds: float | None) -> None:
        """Count an answer; None as seconds for a stream or a wait."""
        self._requests.labels(method, route, str(code)).inc()
        if seconds is not None:
            self._durations.labels(route).observe(seconds)

    def text(self, service: JobService) -> bytes:
        """Return all series that a caller may see, in Prometheus' text format."""
        # A registry for each scrape, since each caller sees other jobs; the counters of the process have their own.
        registry = CollectorRegistry()
        registry.register(_State(service))
        own = generate_latest(self._own) if service.caller.is_admin else b""
        return generate_latest(registry) + own


class _State(Collector):
    """State of the ledger and the GPUs at one moment."""

    def __init__(self, service: JobService) -> None:
        self._service = service

    def describe(self) -> Iterable[Metric]:
        """Return nothing: `CollectorRegistry.register` would call `collect` otherwise."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read the current state; if a GPU cannot be read, its series are left out, as an exporter does."""
        info = GaugeMetricFamily("pgpu_build_info", "Which pgpu answers.", labels=("version",))
        info.add_metric((installed_version(),), 1)
        yield info
        service = self._service
        entries = service.ledger.entries(include_final=False)
        seen = [entry for entry in entries if service.caller.sees(entry.job.owner_uid)]
        yield from _job_metrics([entry.job for entry in seen if not entry.job.state.is_final])
        reports = [report_job(service.engines.own, entry) for entry in seen]
        yield from _slice_metrics(reports)
        yield from _time_metrics(reports)
        try:
            gpus = service.gpus()
        except NodeError:
            return
        yield from _gpu_metrics(gpus)


def _gpu_metrics(reports: Sequence[GpuReport]) -> Iterator[Metric]:
    amounts: tuple[tuple[str, str, Callable[[GpuReport], int]], ...] = (
        ("pgpu_gpu_memory_bytes", "Memory that programs can use.", lambda report: report.gpu.memory_bytes),
        ("pgpu_gpu_memory_used_bytes", "Held by all processes together.", lambda report: report.used_bytes),
        ("pgpu_gpu_memory_granted_bytes", "Sum of the slices granted.", lambda report: report.granted_bytes),
        ("pgpu_gpu_memory_grantable_bytes", "What slices may sum to now.", lambda report: report.capacity_bytes),
        (
            "pgpu_gpu_outsiders",
            "Processes that compute outside of every lease, as far as the caller sees them.",
            lambda report: len(report.outsiders),
        ),
        (
            "pgpu_gpu_outsiders_memory_bytes",
            "Held by processes that compute outside of every lease.",
            lambda report: sum(each.used_bytes or 0 for each in report.outsiders),
        ),
    )
    for name, help_text, of in amounts:
        family = GaugeMetricFamily(name, help_text, labels=_GPU_LABELS)
        for report in reports:
            family.add_metric(_gpu_labels(report), of(report))
        yield family
    promised = GaugeMetricFamily(
        "pgpu_gpu_compute_granted_ratio", "Sum of the shares of its time granted, 0 to 1.", labels=_GPU_LABELS
    )
    mode = GaugeMetricFamily("pgpu_gpu_sharing", "How the jobs on it share it.", labels=(*_GPU_LABELS, "mode"))
    for report in reports:
        promised.add_metric(_gpu_labels(report), report.granted_compute)
        if report.sharing is not None:
            mode.add_metric((*_gpu_labels(report), report.sharing.value), 1)
    yield from (promised, mode)
    busy = GaugeMetricFamily(
        "pgpu_gpu_utilization_ratio", "Of the last sample period a kernel ran in, 0 to 1.", labels=_GPU_LABELS
    )
    for report in reports:
        if report.utilisation_percent is not None:
            busy.add_metric(_gpu_labels(report), report.utilisation_percent / 100)
    yield busy


def _gpu_labels(report: GpuReport) -> tuple[str, str, str]:
    return report.gpu.place, report.gpu.uuid, report.gpu.name


def _job_metrics(jobs: Sequence[Job]) -> Iterator[Metric]:
    family = GaugeMetricFamily("pgpu_jobs", "Jobs that are not final.", labels=("state",))
    tally = Tally(job.state for job in jobs)
    for state in JobState:
        if not state.is_final:
            family.add_metric((state.value,), tally[state])
    yield family
    warned = sum(job.warning is not None and not job.hit_time_limit for job in jobs)
    yield GaugeMetricFamily(
        "pgpu_jobs_over_slice", "Running jobs that the driver saw holding more than their slice.", warned
    )
    waiting = [job for job in jobs if job.state is JobState.WAITING and job.held_by_uid is None]
    waits = [time.time() - max(job.created_at_seconds, job.begin_at_seconds or 0.0) for job in waiting]
    yield GaugeMetricFamily(
        "pgpu_queue_oldest_wait_seconds", "How long the job that waits longest has waited.", max([0.0, *waits])
    )


def _slice_metrics(reports: Sequence[JobReport]) -> Iterator[Metric]:
    limit = GaugeMetricFamily("pgpu_slice_memory_limit_bytes", "Memory of a slice.", labels=_SLICE_LABELS)
    used = GaugeMetricFamily("pgpu_slice_memory_used_bytes", "Held by its job.", labels=_SLICE_LABELS)
    peak = GaugeMetricFamily("pgpu_slice_memory_peak_bytes", "Most that was held.", labels=_SLICE_LABELS)
    refused = CounterMetricFamily("pgpu_slice_refusals", "Allocations refused at its limit.", labels=_SLICE_LABELS)
    for report in reports:
        if report.job.lease is None or not report.use:
            continue
        for part in report.job.lease.slices:
            limit.add_metric(_slice_labels(report.job, part.gpu_uuid), part.memory_bytes)
        for use in report.use:
            labels = _slice_labels(report.job, use.gpu_uuid)
            used.add_metric(labels, use.used_bytes)
            peak.add_metric(labels, use.peak_bytes)
            refused.add_metric(labels, use.refusals)
    yield from (limit, used, peak, refused)


def _time_metrics(reports: Sequence[JobReport]) -> Iterator[Metric]:
    """GPU time that jobs measure themselves, and the shares granted to them."""
    share = GaugeMetricFamily("pgpu_slice_compute_share", "Share of the GPU's time granted.", labels=_SLICE_LABELS)
    used = CounterMetricFamily("pgpu_slice_gpu_time_seconds", "GPU time used.", labels=_SLICE_LABELS)
    waited = CounterMetricFamily(
        "pgpu_slice_gpu_time_waited_seconds", "Time that launches were held back.", labels=_SLICE_LABELS
    )
    launches = CounterMetricFamily("pgpu_slice_launches", "Kernels, graphs and copies.", labels=_SLICE_LABELS)
    for report in reports:
        for part in () if report.job.lease is None else report.job.lease.slices:
            if part.compute_share is not None and report.use:
                share.add_metric(_slice_labels(report.job, part.gpu_uuid), part.compute_share)
        for each in report.time:
            labels = _slice_labels(report.job, each.gpu_uuid)
            used.add_metric(labels, each.used_seconds)
            waited.add_metric(labels, each.waited_seconds)
            launches.add_metric(labels, each.launches)
    yield from (share, used, waited, launches)


def _slice_labels(job: Job, gpu_uuid: str) -> tuple[str, str, str, str]:
    return job.id, job.spec.name or "", str(job.owner_uid), gpu_uuid


class MetricsMiddleware:
    """Counts the requests of an application; the label is the route's pattern, since clients choose the paths."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        code = 500  # An exception passes through here; Starlette's outermost handler answers it.
        began_at_seconds = time.perf_counter()

        async def record_status(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, record_status)
        finally:
            route = getattr(scope.get("route"), "path", _UNMATCHED)
            is_wait = route.endswith(("/wait", "/granted", "/events", "/logs"))
            seconds = None if is_wait else time.perf_counter() - began_at_seconds
            self._metrics.record(scope["method"] if route != _UNMATCHED else "ANY", route, code, seconds)
