"""What Prometheus scrapes of a node's driver: slices by pod and container, and GPUs.

Names and units are those of a server of pgpu where they mean the same (`pgpu.server.metrics`); the labels of a GPU are those of NVIDIA's
dcgm-exporter (`gpu`, `UUID`, `modelName`), those of a container are the kubelet's (`namespace`, `pod`, `container`), so that all
join in one query. Containers that share a claim share its slice: each has its series, with all of it, so sums go over `claim_uid`.
Sources: prometheus.io/docs/practices/naming, github.com/NVIDIA/dcgm-exporter.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from pgpu.distribution import installed_version
from pgpu.engine.claims import ClaimableGpu
from pgpu.errors import NodeError
from pgpu.kubernetes.driver_readiness import Readiness
from pgpu.kubernetes.node_view import NodeView
from pgpu.kubernetes.pod_shares import Share

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_GPU_LABELS = ("gpu", "UUID", "modelName")
_SLICE_LABELS = ("namespace", "pod", "container", "claim", "claim_uid", *_GPU_LABELS)


class DriverMetrics:
    """What one driver tells of its node."""

    def __init__(self, watch: NodeView, readiness: Readiness) -> None:
        """Read nothing yet."""
        disable_created_metrics()  # type: ignore[no-untyped-call] # the library has no type for it
        self._registry = CollectorRegistry()
        self._registry.register(_State(watch, readiness))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """Return everything, in Prometheus' text format."""
        return generate_latest(self._registry)


class _State(Collector):
    """What engine and kubelet tell at one moment."""

    def __init__(self, watch: NodeView, readiness: Readiness) -> None:
        self._watch = watch
        self._readiness = readiness

    def describe(self) -> Iterable[Metric]:
        """Say nothing before it is asked: see `CollectorRegistry.register`."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read everything afresh; what cannot be read leaves its series out, as an exporter's does."""
        info = GaugeMetricFamily("pgpu_build_info", "Which pgpu answers.", labels=("version",))
        info.add_metric((installed_version(),), 1)
        yield info
        reasons = self._readiness.reasons()
        yield GaugeMetricFamily("pgpu_driver_ready", "Whether pods can get slices here: /readyz.", not reasons)
        offers = self._gpus()
        yield from _of_gpus(offers)
        yield from self._of_slices({each.gpu.uuid: each for each in offers})

    def _gpus(self) -> Sequence[ClaimableGpu]:
        try:
            return self._watch.gpus()
        except NodeError:
            return ()

    def _of_slices(self, offers: Mapping[str, ClaimableGpu]) -> Iterator[Metric]:
        try:
            shares = self._watch.shares()
        except NodeError:
            yield GaugeMetricFamily("pgpu_pods_known", "Whether kubelet and ledger tell who has which slice.", 0)
            return
        yield GaugeMetricFamily("pgpu_pods_known", "Whether kubelet and ledger tell who has which slice.", 1)
        yield from _of_shares(shares, offers)


def _of_gpus(offers: Sequence[ClaimableGpu]) -> Iterator[Metric]:
    amounts: tuple[tuple[str, str, Callable[[ClaimableGpu], int]], ...] = (
        ("pgpu_gpu_memory_bytes", "Memory that programs can use.", lambda offer: offer.gpu.memory_bytes),
        ("pgpu_gpu_memory_granted_bytes", "Sum of the slices granted.", lambda offer: offer.held_bytes),
        ("pgpu_gpu_memory_grantable_bytes", "What slices may sum to now.", lambda offer: offer.memory_bytes),
    )
    for name, help_text, of in amounts:
        family = GaugeMetricFamily(name, help_text, labels=_GPU_LABELS)
        for offer in offers:
            family.add_metric(_gpu_labels(offer.gpu.uuid, offer), of(offer))
        yield family


def _of_shares(shares: Sequence[Share], offers: Mapping[str, ClaimableGpu]) -> Iterator[Metric]:
    amounts: tuple[tuple[str, str, Callable[[Share], float | None]], ...] = (
        ("pgpu_slice_memory_limit_bytes", "Memory of a slice.", lambda share: share.memory_limit_bytes),
        ("pgpu_slice_memory_used_bytes", "Held by its containers.", lambda share: share.memory_used_bytes),
        ("pgpu_slice_memory_peak_bytes", "Most that was held.", lambda share: share.memory_peak_bytes),
        ("pgpu_slice_processes", "Living ones with a context on the GPU.", lambda share: share.processes),
        ("pgpu_slice_compute_share", "Share of the GPU's time granted.", lambda share: share.compute_share),
    )
    for name, help_text, of in amounts:
        family = GaugeMetricFamily(name, help_text, labels=_SLICE_LABELS)
        _fill(family, shares, offers, of)
        yield family
    refused = CounterMetricFamily("pgpu_slice_refusals", "Allocations refused at its limit.", labels=_SLICE_LABELS)
    _fill(refused, shares, offers, lambda share: share.refusals)
    yield refused


def _fill(
    family: GaugeMetricFamily | CounterMetricFamily,
    shares: Sequence[Share],
    offers: Mapping[str, ClaimableGpu],
    of: Callable[[Share], float | None],
) -> None:
    for share in shares:
        amount = of(share)
        if amount is not None:
            of_gpu = _gpu_labels(share.gpu_uuid, offers.get(share.gpu_uuid))
            labels = (share.namespace, share.pod, share.container, share.claim, share.claim_uid, *of_gpu)
            family.add_metric(labels, amount)


def _gpu_labels(uuid: str, offer: ClaimableGpu | None) -> tuple[str, str, str]:
    """Return what names a GPU; of one that is gone only the UUID is known."""
    return ("", uuid, "") if offer is None else (offer.gpu.place, uuid, offer.gpu.name)
