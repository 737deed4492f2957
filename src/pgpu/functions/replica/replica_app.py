"""A replica's HTTP: the request handler behind its connections, and the ASGI application for everything but direct calls."""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from pgpu.functions.http.asgi_calls import Receive, answer_call, send_reply
from pgpu.functions.http.request_handler import BAD_TIMEOUT, NOT_FOUND, plain_headers, request_id, request_times
from pgpu.functions.http.response_writer import Send
from pgpu.functions.ipc.call_messages import Body, Reply
from pgpu.functions.protocols.call_refusal import Refusal
from pgpu.functions.replica.worker_queue import WorkerQueue
from pgpu.functions.replica.worker_supervisor import ServingState, WorkerSupervisor
from pgpu.functions.requests.request_queue import PendingRequest, ReplicaMetrics, ResponseSink

_JSON = {"content-type": "application/json"}
_encode = msgspec.json.Encoder().encode


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
