"""A replica's process: assembles its parts, serves HTTP, and exits on a signal.

Direct calls go from an HTTP connection to the worker queue through `ReplicaRequestHandler`; `ReplicaApp` is the ASGI
application for everything else: health, metrics, descriptions. All of it runs on one event loop in the main thread;
a second thread waits for the slice signals and passes them to the loop.

SIGTERM drains: readiness ends at once, admitted requests are served, new ones refused, then the worker closes its handler.
A second SIGTERM exits at once. SIGTSTP means that the slice was taken, SIGCONT that there is one again.
"""

import asyncio
import gc
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from pgpu.functions.api import parse_declaration
from pgpu.functions.http.asgi_calls import Receive, answer_call, send_reply
from pgpu.functions.http.http_connection import HttpConnection, HttpServer
from pgpu.functions.http.request_handler import BAD_TIMEOUT, NOT_FOUND, plain_headers, request_id, request_times
from pgpu.functions.http.response_writer import Send
from pgpu.functions.ipc.async_channel import CoalescingLoop
from pgpu.functions.ipc.call_messages import Body, Reply
from pgpu.functions.ipc.local_sockets import listening_socket
from pgpu.functions.protocols.call_refusal import Refusal
from pgpu.functions.replica.call_server import CallServer
from pgpu.functions.replica.startup import SLICE_SIGNALS, ServedFunction, ZygoteProcess
from pgpu.functions.replica.worker_queue import WorkerQueue
from pgpu.functions.replica.worker_supervisor import ServingState, WorkerSupervisor
from pgpu.functions.requests.request_queue import PendingRequest, ReplicaMetrics, ResponseSink
from pgpu.functions.worker.child_processes import adopt_orphans
from pgpu.structs import Struct

HTTP_SOCKET = "http.sock"
CALLS_SOCKET = "calls.sock"
DRAINING = Refusal(503, "draining", "this replica is leaving", {"retry-after": "1", "connection": "close"})
_BACKLOG = 1024
_JSON = {"content-type": "application/json"}
_encode = msgspec.json.Encoder().encode


class ReplicaSettings(Struct, frozen=True):
    """How a replica runs, independent of its function."""

    directory: Path
    """Of its Unix sockets."""

    address: tuple[str, int] | None = None
    """Host and port for HTTP as well; None: only the Unix socket."""

    health_seconds: float = 10.0
    """Interval of health probes of an idle worker: a broken GPU is found before the next call."""


def run(function: ServedFunction, settings: ReplicaSettings, first: ZygoteProcess | None = None) -> None:
    """Serve a function until SIGTERM or SIGINT; `first` is its zygote, if that was started already."""
    logging.basicConfig(format="pgpu: %(message)s", level=logging.INFO)
    # Children of a zygote that dies must become children of this process, which kills them.
    adopt_orphans()
    with asyncio.Runner(loop_factory=CoalescingLoop) as runner:
        runner.run(_serve(function, settings, first))


async def _serve(function: ServedFunction, settings: ReplicaSettings, first: ZygoteProcess | None) -> None:
    loop = asyncio.get_running_loop()
    metrics = ReplicaMetrics()
    queue = WorkerQueue(parse_declaration(function.declaration), metrics)
    metrics.gauges["pgpu_function_in_flight"] = ("Requests waiting or with the worker.", lambda: queue.size)
    metrics.gauges["pgpu_function_waiting"] = ("Requests waiting for a place.", lambda: queue.waiting)
    supervisor = WorkerSupervisor(function, queue, metrics)
    supervisor.first = first
    handler = ReplicaRequestHandler(function.name, queue, supervisor, metrics)
    connection = type("ReplicaHttpConnection", (HttpConnection,), {"handler": handler})
    server = HttpServer(ReplicaApp(handler), connection)
    leaving = _leave_on_signals(loop)
    _follow_slice_signals(loop, supervisor.on_slice_taken, supervisor.on_slice_given)
    sockets = [listening_socket(settings.directory / HTTP_SOCKET, _BACKLOG)]
    if settings.address is not None:
        sockets.append(socket.create_server(settings.address, backlog=_BACKLOG))
    queue.watch_deadlines(supervisor.check_deadline)
    loop.call_later(settings.health_seconds, supervisor.probe_health, settings.health_seconds)
    calls = CallServer(queue, supervisor, settings.directory / CALLS_SOCKET)
    supervisor.start()
    gc.freeze()  # loaded modules stay for the process's life: garbage collection need not visit them
    serving = loop.create_task(server.serve(sockets))
    try:
        await leaving.wait()
        # The gateway is notified of the state and sends no more calls; late ones get a 503 that it retries elsewhere.
        supervisor.state, queue.closed = ServingState.DRAINING, DRAINING
        idle = asyncio.Event()
        queue.on_idle = idle.set
        if queue.size:
            await idle.wait()
        # No request is pending any more; the worker runs its handler's close().
        await supervisor.leave()
        server.leave()
        await serving
    finally:
        calls.close()
        supervisor.close()
        for name in (HTTP_SOCKET, CALLS_SOCKET):
            (settings.directory / name).unlink(missing_ok=True)


def _leave_on_signals(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    leaving = asyncio.Event()

    def leave() -> None:
        if leaving.is_set():
            os._exit(1)  # the second signal: pending requests are dropped, zygote and worker end with this process
        leaving.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave)
    return leaving


def _follow_slice_signals(
    loop: asyncio.AbstractEventLoop, on_taken: Callable[[], None], on_given: Callable[[], None]
) -> None:
    """Call one of the two on the loop for each slice signal, in the order of their arrival.

    One thread takes the blocked signals with `sigwait`; while both are blocked the kernel keeps only the later of SIGTSTP and
    SIGCONT. Signal handlers would reverse the order of two signals that arrive together: the second's handler interrupts the first's.
    """

    def wait() -> None:
        while not loop.is_closed():
            is_taken = signal.sigwait(SLICE_SIGNALS) == signal.SIGTSTP
            try:
                loop.call_soon_threadsafe(on_taken if is_taken else on_given)
            except RuntimeError:  # the loop was closed meanwhile
                return

    threading.Thread(target=wait, name="slice-signals", daemon=True).start()


class ReplicaRequestHandler:
    """Passes the requests of HTTP connections to the worker queue; see `RequestHandler`."""

    def __init__(self, name: str, queue: WorkerQueue, supervisor: WorkerSupervisor, metrics: ReplicaMetrics) -> None:
        self.name, self.queue, self.supervisor, self.metrics = name, queue, supervisor, metrics
        plain = re.escape(name)
        infer = rf"/v2/models/{plain}(?:/versions/[^/]+)?/infer"
        self._match_call = re.compile(rf"/|/functions/{plain}|{infer}").fullmatch

    def is_call(self, path: str) -> bool:
        return path == "/" or self._match_call(path) is not None

    def accept_direct(self, scope: Any, headers: dict[str, str]) -> PendingRequest:
        """Begin a request; it is not admitted yet, but its deadline runs."""
        times = request_times(headers, self.supervisor.declaration.timeout_seconds)
        query = scope["query_string"].decode("latin-1")
        return PendingRequest(
            request_id(headers), scope["method"], scope["path"], query, headers, b"", None, *times, None
        )

    def abandon(self, request: PendingRequest) -> None:
        self.queue.abandon(request)

    def replica_of(self, _request: PendingRequest) -> WorkerQueue:
        return self.queue

    def submit(self, request: PendingRequest, body: Body, file: int | None, sink: ResponseSink) -> None:
        request.body, request.file, request.sink = body, file, sink
        if request.timeout_seconds:
            self.queue.submit(request)
        else:
            request.release_body()
            sink.reply(BAD_TIMEOUT.reply(request.request_id), None)


class ReplicaApp:
    """The ASGI application of a replica."""

    def __init__(self, handler: ReplicaRequestHandler) -> None:
        self._handler = handler
        self._pages: dict[str, Callable[[], Reply]] = {
            "/healthz": self._live,
            "/v2/health/live": self._live,
            "/readyz": self._ready,
            "/v2/health/ready": self._ready,
            f"/v2/models/{handler.name}/ready": self._ready,
            "/metrics": self._metrics,
        }

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        handler, path = self._handler, scope["path"]
        request = handler.accept_direct(scope, plain_headers(scope["headers"]))
        declaration = handler.supervisor.declaration
        is_applications = declaration.is_asgi and path not in self._pages
        if not (is_applications or (request.method == "POST" and handler.is_call(path))):
            await send_reply(handler, request, self._page(request), send)
        elif (refusal := handler.queue.refusal()) is not None:
            await send_reply(handler, request, refusal.reply(request.request_id), send)
        else:
            await answer_call(handler, request, declaration.max_body_bytes, receive, send)

    def _page(self, request: PendingRequest) -> Reply:
        page = self._pages.get(request.path) or self._description(request.path)
        if page is None and not self._handler.is_call(request.path):
            return NOT_FOUND.reply(request.request_id)
        if page is None or request.method not in {"GET", "HEAD"}:
            allowed = "GET, HEAD" if page is not None else "POST"
            refusal = Refusal(405, "bad_method", f"this path takes {allowed}", {"allow": allowed})
            return refusal.reply(request.request_id)
        return page()

    def _live(self) -> Reply:
        return self._health(200)

    def _ready(self) -> Reply:
        return self._health(200 if self._handler.supervisor.state is ServingState.HOT else 503)

    def _health(self, status: int) -> Reply:
        supervisor = self._handler.supervisor
        body = {"state": supervisor.state, "reason": supervisor.reason, "restarts": supervisor.restarts}
        return Reply(status, _JSON, _encode(body))

    def _description(self, path: str) -> Callable[[], Reply] | None:
        body = self._handler.supervisor.pages.get(path)
        return None if body is None else lambda: Reply(200, _JSON, body)

    def _metrics(self) -> Reply:
        # Loaded at the first scrape: the library would take a tenth of a cold start.
        from pgpu.functions.requests.prometheus_metrics import ReplicaMetricsCollector, metrics_text  # noqa: PLC0415

        text = metrics_text(ReplicaMetricsCollector(self._handler.metrics))
        return Reply(200, {"content-type": "text/plain; version=0.0.4; charset=utf-8"}, text)
