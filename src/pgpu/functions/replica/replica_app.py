"""The ordinary way: an ASGI application for everything that a replica answers.

It refuses to run anything of the user's: what it knows of the function, the zygote told.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from pgpu.functions.http.asgi_calls import answer_call, send_reply
from pgpu.functions.http.request_bodies import Receive
from pgpu.functions.http.request_heads import plain_headers
from pgpu.functions.http.response_writer import Send
from pgpu.functions.ipc.messages import Reply
from pgpu.functions.protocols.call_refusal import Refusal
from pgpu.functions.replica.replica_handler import ReplicaRequestHandler
from pgpu.functions.replica.serving_state import ServingState
from pgpu.functions.requests.pending_request import PendingRequest

_NOT_FOUND = Refusal(404, "not_found", "there is nothing at this path")
_encode = msgspec.json.Encoder().encode


class ReplicaApp:
    """The ASGI application."""

    def __init__(self, service: ReplicaRequestHandler) -> None:
        self._service = service
        models = f"/v2/models/{service.name}"
        self._pages: dict[str, Callable[[], Reply]] = {
            "/healthz": self._live,
            "/v2/health/live": self._live,
            "/readyz": self._ready,
            "/v2/health/ready": self._ready,
            f"{models}/ready": self._ready,
            "/metrics": self._metrics,
        }

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        service, path, method = self._service, scope["path"], scope["method"]
        ticket = service.ticket(method, path, scope["query_string"].decode("latin-1"), plain_headers(scope["headers"]))
        if self._is_call(method, path):
            await self._call(ticket, receive, send)
        else:
            await send_reply(service, ticket, self._page(ticket), send)

    def _is_call(self, method: str, path: str) -> bool:
        is_its_own = self._service.keeper.declaration.is_asgi and path not in self._pages
        return is_its_own or (method == "POST" and self._service.is_call(path))

    def _page(self, ticket: PendingRequest) -> Reply:
        page = self._pages.get(ticket.path) or self._description(ticket.path)
        if page is None and not self._service.is_call(ticket.path):
            return _NOT_FOUND.reply(ticket.request_id)
        if page is None or ticket.method not in {"GET", "HEAD"}:
            allowed = "GET, HEAD" if page is not None else "POST"
            return Refusal(405, "bad_method", f"this path takes {allowed}", {"allow": allowed}).reply(ticket.request_id)
        return page()

    async def _call(self, ticket: PendingRequest, receive: Receive, send: Send) -> None:
        service = self._service
        if (refused := service.desk.refusal()) is None:
            await answer_call(service, ticket, service.keeper.declaration.max_body_bytes, receive, send)
        else:
            await send_reply(service, ticket, refused.reply(ticket.request_id), send)

    def _live(self) -> Reply:
        return self._health(200)

    def _ready(self) -> Reply:
        return self._health(200 if self._service.keeper.state is ServingState.HOT else 503)

    def _health(self, status: int) -> Reply:
        keeper = self._service.keeper
        body = {"state": keeper.state, "reason": keeper.reason, "restarts": keeper.restarts}
        return Reply(status, {"content-type": "application/json"}, _encode(body))

    def _description(self, path: str) -> Callable[[], Reply] | None:
        body = self._service.keeper.pages.get(path)
        return None if body is None else lambda: Reply(200, {"content-type": "application/json"}, body)

    def _metrics(self) -> Reply:
        from pgpu.functions.requests.metrics_text import metrics_text  # noqa: PLC0415 - a tenth of a start, before anybody scrapes

        return Reply(
            200, {"content-type": "text/plain; version=0.0.4; charset=utf-8"}, metrics_text(self._service.metrics)
        )
