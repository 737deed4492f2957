"""What a node's driver tells over HTTP: /metrics, /healthz, /readyz, and /pods for `pgpu ps --kubernetes`.

It only reads, knows no users, and names pods: it listens on the node itself unless its operator says otherwise.
"""

import contextlib
import dataclasses
import json
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6, socket
from typing import Any

from pgpu.errors import NodeError, PgpuError
from pgpu.kubernetes.driver_metrics import CONTENT_TYPE, DriverMetrics
from pgpu.kubernetes.driver_readiness import Readiness
from pgpu.kubernetes.node_view import NodeView

ADDRESS = "127.0.0.1:9410"

_PLAIN = "text/plain; charset=utf-8"
_JSON = "application/json"
_REQUEST_SECONDS = 10.0
"""How long a caller may be silent."""

_MOST_CALLERS = 32
_END_SECONDS = 0.1
"""How soon it sees that it has to end."""

_Answer = tuple[HTTPStatus, str, bytes]


class DriverHttpServer:
    """The pages of one driver, as something that lives as long as it."""

    def __init__(self, address: str, watch: NodeView, readiness: Readiness) -> None:
        """Listen to nobody yet.

        Args:
            address: HOST:PORT; port 0 takes a free one.
            watch: Of this node.
            readiness: Of this driver.
        """
        self._address = address
        self._watch = watch
        self._readiness = readiness
        self._meters = DriverMetrics(watch, readiness)
        self._server: _Server | None = None

    def start(self) -> None:
        """Begin to answer.

        Raises:
            NodeError: Nobody can listen there.
        """
        host, _, port = self._address.rpartition(":")
        try:
            self._server = _Server((host.strip("[]"), int(port)), self)
        except (OSError, ValueError, OverflowError) as exc:
            raise NodeError(f"--metrics {self._address}: {exc}", hint="another driver, or another program?") from exc
        threading.Thread(target=self._server.serve_forever, args=(_END_SECONDS,), name="web", daemon=True).start()

    def registered(self) -> None:
        """Nothing changes when the kubelet takes the driver."""

    def stop(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    @property
    def port(self) -> int:
        """Where it listens; known once it was started."""
        return 0 if self._server is None else int(self._server.server_address[1])

    def answer(self, path: str) -> _Answer:
        """Return what stands at a path."""
        pages = {"/metrics": self._metrics, "/healthz": _alive, "/readyz": self._ready, "/pods": self._pods}
        page = pages.get(path.partition("?")[0])
        if page is None:
            return HTTPStatus.NOT_FOUND, _PLAIN, b"not here\n"
        try:
            return page()
        except Exception as exc:  # noqa: BLE001 - who asks must hear of a bug, and the driver must go on
            return HTTPStatus.INTERNAL_SERVER_ERROR, _PLAIN, f"a bug of pgpu: {exc!r}\n".encode()

    def _metrics(self) -> _Answer:
        return HTTPStatus.OK, CONTENT_TYPE, self._meters.text()

    def _ready(self) -> _Answer:
        reasons = self._readiness.reasons()
        lines = [f"{subject}: {why}" for subject, why in reasons.items()] or ["ready"]
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        return status, _PLAIN, "".join(f"{line}\n" for line in lines).encode()

    def _pods(self) -> _Answer:
        try:
            names = {each.gpu.uuid: f"{each.gpu.place} {each.gpu.name}" for each in self._watch.gpus()}
            shares = [_told(dataclasses.asdict(each), names) for each in self._watch.shares()]
        except PgpuError as exc:
            error = {"message": str(exc), "hint": exc.hint}
            return HTTPStatus.SERVICE_UNAVAILABLE, _JSON, json.dumps({"error": error}).encode()
        return HTTPStatus.OK, _JSON, json.dumps({"shares": shares}).encode()


def _told(share: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {**share, "gpu": names.get(share["gpu_uuid"])}


def _alive() -> _Answer:
    return HTTPStatus.OK, _PLAIN, b"alive\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], web: DriverHttpServer) -> None:
        self.address_family = AF_INET6 if ":" in address[0] else AF_INET
        self._places = threading.BoundedSemaphore(_MOST_CALLERS)
        self.web = web
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer one caller in a thread of its own; who comes when all places are taken is sent away."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started: nobody would give the place back
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Give the place back at the end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """Be silent of callers that left before their answer."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_SECONDS

    def do_GET(self) -> None:
        """Answer."""
        status, content_type, body = self.server.web.answer(self.path)
        with contextlib.suppress(ConnectionError):
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Keep the log for what matters: a kubelet asks every few seconds."""
