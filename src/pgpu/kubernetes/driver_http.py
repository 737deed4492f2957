"""What a node's driver serves over HTTP: /metrics, /healthz, /readyz, and /pods for `pgpu ps --kubernetes`.

Read-only and without authentication, and it names pods: it listens on loopback unless `--metrics` names another address.

Metric names and units are those of a server of pgpu where they mean the same (`pgpu.server.metrics`). A GPU has the labels of
NVIDIA's dcgm-exporter (`gpu`, `UUID`, `modelName`), a container those of the kubelet (`namespace`, `pod`, `container`), so
that all join in one query. Containers that share a claim have one series each with the whole slice: sum over `claim_uid`.
Sources: prometheus.io/docs/practices/naming, github.com/NVIDIA/dcgm-exporter.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6, socket
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from pgpu.distribution import installed_version
from pgpu.engine.claims import ClaimableGpu, Claims
from pgpu.errors import NodeError, PgpuError
from pgpu.kubernetes.node_health import DriverReadiness
from pgpu.kubernetes.pod_shares import PodResources, PodShare, shares
from pgpu.structs import to_builtins

ADDRESS = "127.0.0.1:9410"

_PLAIN = "text/plain; charset=utf-8"
_JSON = "application/json"
# A connection is closed after so long without a request.
_IDLE_SECONDS = 10.0

_MOST_CONNECTIONS = 32
_STOP_POLL_SECONDS = 0.1

_GPU_LABELS = ("gpu", "UUID", "modelName")
_SLICE_LABELS = ("namespace", "pod", "container", "claim", "claim_uid", *_GPU_LABELS)

_GPU_GAUGES: tuple[tuple[str, str, Callable[[ClaimableGpu], int]], ...] = (
    ("pgpu_gpu_memory_bytes", "Memory that programs can use.", lambda offer: offer.gpu.memory_bytes),
    ("pgpu_gpu_memory_granted_bytes", "Sum of the slices granted.", lambda offer: offer.held_bytes),
    ("pgpu_gpu_memory_grantable_bytes", "What slices may sum to now.", lambda offer: offer.memory_bytes),
)
_SLICE_GAUGES: tuple[tuple[str, str, Callable[[PodShare], float | None]], ...] = (
    ("pgpu_slice_memory_limit_bytes", "Memory of a slice.", lambda share: share.memory_limit_bytes),
    ("pgpu_slice_memory_used_bytes", "Held by its containers.", lambda share: share.memory_used_bytes),
    ("pgpu_slice_memory_peak_bytes", "Most that was held.", lambda share: share.memory_peak_bytes),
    ("pgpu_slice_processes", "Live processes with a context on the GPU.", lambda share: share.processes),
    ("pgpu_slice_compute_share", "Share of the GPU's time granted.", lambda share: share.compute_share),
)

_Answer = tuple[HTTPStatus, str, bytes]


class NodeView:
    """Read-only view of a node: its GPUs, and its slices with the containers that have them. Thread-safe."""

    def __init__(self, claims: Claims, pods: PodResources) -> None:
        self._claims = claims
        self._pods = pods

    def gpus(self) -> Sequence[ClaimableGpu]:
        """Return what claims may take of each GPU, and what they hold.

        Raises:
            NodeError: They cannot be read.
        """
        return self._claims.gpus()

    def shares(self) -> Sequence[PodShare]:
        """Return every slice with the container that has it.

        Raises:
            KubeletAwayError: The kubelet does not answer.
            NodeError: The ledger cannot be used.
        """
        pods, uses, records = self._pods.pods(), self._claims.uses(), self._claims.records()
        return shares(pods, [records[uid] for uid in records if uid in uses], uses)


class _NodeCollector(Collector):
    """Reads everything at each scrape; the series of what cannot be read are left out."""

    def __init__(self, view: NodeView, readiness: DriverReadiness) -> None:
        self._view = view
        self._readiness = readiness

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that the registry does not collect at registration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Return all series of the driver."""
        info = GaugeMetricFamily("pgpu_build_info", "Version of pgpu.", labels=("version",))
        info.add_metric((installed_version(),), 1)
        yield info
        problems = self._readiness.problems()
        yield GaugeMetricFamily("pgpu_driver_ready", "Whether pods can get slices here: /readyz.", not problems)
        try:
            offers = self._view.gpus()
        except NodeError:
            offers = ()
        for name, help_text, of_gpu in _GPU_GAUGES:
            family = GaugeMetricFamily(name, help_text, labels=_GPU_LABELS)
            for offer in offers:
                family.add_metric(_gpu_labels(offer.gpu.uuid, offer), of_gpu(offer))
            yield family
        try:
            found = self._view.shares()
        except NodeError:
            yield GaugeMetricFamily("pgpu_pods_known", "Whether kubelet and ledger could be read.", 0)
            return
        yield GaugeMetricFamily("pgpu_pods_known", "Whether kubelet and ledger could be read.", 1)
        by_uuid = {each.gpu.uuid: each for each in offers}
        for name, help_text, of_share in _SLICE_GAUGES:
            yield _filled(GaugeMetricFamily(name, help_text, labels=_SLICE_LABELS), found, by_uuid, of_share)
        refused = CounterMetricFamily("pgpu_slice_refusals", "Allocations refused at its limit.", labels=_SLICE_LABELS)
        yield _filled(refused, found, by_uuid, lambda share: share.refusals)


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily,
    found: Sequence[PodShare],
    offers: Mapping[str, ClaimableGpu],
    of_share: Callable[[PodShare], float | None],
) -> Metric:
    for share in found:
        amount = of_share(share)
        if amount is not None:
            gpu_labels = _gpu_labels(share.gpu_uuid, offers.get(share.gpu_uuid))
            labels = (share.namespace, share.pod, share.container, share.claim, share.claim_uid, *gpu_labels)
            family.add_metric(labels, amount)
    return family


def _gpu_labels(uuid: str, offer: ClaimableGpu | None) -> tuple[str, str, str]:
    return ("", uuid, "") if offer is None else (offer.gpu.place, uuid, offer.gpu.name)


class DriverHttpServer:
    """The HTTP server of one driver; a `Companion`."""

    def __init__(self, address: str, view: NodeView, readiness: DriverReadiness) -> None:
        """Listen nowhere yet.

        Args:
            address: HOST:PORT; port 0 takes a free one.
            view: Of this node.
            readiness: Of this driver.
        """
        self._address = address
        self._view = view
        self._readiness = readiness
        # Creation times of counters would be the time of the scrape: all series are made anew for each.
        disable_created_metrics()  # type: ignore[no-untyped-call] # the library has no type for it
        self._registry = CollectorRegistry()
        self._registry.register(_NodeCollector(view, readiness))
        # A registry of its own: the default one has metrics of any imported library.
        ProcessCollector(registry=self._registry)
        self._server: _Server | None = None

    def start(self) -> None:
        """Listen, and serve from a thread.

        Raises:
            NodeError: The address cannot be listened on.
        """
        host, _, port = self._address.rpartition(":")
        try:
            self._server = _Server((host.strip("[]"), int(port)), self)
        except (OSError, ValueError, OverflowError) as exc:
            raise NodeError(f"--metrics {self._address}: {exc}", hint="another driver, or another program?") from exc
        threading.Thread(target=self._server.serve_forever, args=(_STOP_POLL_SECONDS,), name="web", daemon=True).start()

    def registered(self) -> None:
        """See `Companion.registered`; nothing to do."""

    def stop(self) -> None:
        """Close the listening socket."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    @property
    def port(self) -> int:
        """The port listened on; 0 before `start`."""
        return 0 if self._server is None else int(self._server.server_address[1])

    def answer(self, path: str) -> _Answer:
        """Return status, content type and body of a page."""
        pages = {"/metrics": self._metrics, "/healthz": _alive, "/readyz": self._ready, "/pods": self._pods}
        page = pages.get(path.partition("?")[0])
        if page is None:
            return HTTPStatus.NOT_FOUND, _PLAIN, b"not here\n"
        try:
            return page()
        except Exception as exc:  # noqa: BLE001 - a bug is reported to the client, and the driver goes on
            return HTTPStatus.INTERNAL_SERVER_ERROR, _PLAIN, f"a bug of pgpu: {exc!r}\n".encode()

    def _metrics(self) -> _Answer:
        return HTTPStatus.OK, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry)

    def _ready(self) -> _Answer:
        problems = self._readiness.problems()
        lines = [f"{subject}: {why}" for subject, why in problems.items()] or ["ready"]
        status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
        return status, _PLAIN, "".join(f"{line}\n" for line in lines).encode()

    def _pods(self) -> _Answer:
        try:
            gpus = [each.gpu for each in self._view.gpus()]
            names = {gpu.uuid: f"{gpu.place} {gpu.name}" for gpu in gpus}
            simulated = {gpu.uuid for gpu in gpus if gpu.is_simulated}
            found = [
                {
                    **to_builtins(each),
                    "gpu": names.get(each.gpu_uuid),
                    "is_simulated": each.gpu_uuid in simulated,
                }
                for each in self._view.shares()
            ]
        except PgpuError as exc:
            error = {"message": str(exc), "hint": exc.hint}
            return HTTPStatus.SERVICE_UNAVAILABLE, _JSON, json.dumps({"error": error}).encode()
        return HTTPStatus.OK, _JSON, json.dumps({"shares": found}).encode()


def _alive() -> _Answer:
    return HTTPStatus.OK, _PLAIN, b"alive\n"


class _Server(ThreadingHTTPServer):
    """One thread for each connection, 32 at most; more connections are closed at once."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], driver: DriverHttpServer) -> None:
        self.address_family = AF_INET6 if ":" in address[0] else AF_INET
        self._free_threads = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self.driver = driver
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, or close it."""
        if not self._free_threads.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # the thread that would release it was not started
            self._free_threads.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free_threads.release()

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """Log nothing: clients may disconnect before their answer."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _IDLE_SECONDS

    def do_GET(self) -> None:
        """Answer."""
        status, content_type, body = self.server.driver.answer(self.path)
        with contextlib.suppress(ConnectionError):
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Log nothing: the kubelet probes every few seconds."""
