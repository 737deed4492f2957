"""The ordinary way: an ASGI application for everything that a replica answers.

It refuses to run anything of the user's: what it knows of the function, the zygote told.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from pgpu.functions.calls.messages import Chunk, Reply
from pgpu.functions.front.http.answering import Answering, Send
from pgpu.functions.front.http.bodies import TOO_LARGE, ClientGoneError, Receive, read_body
from pgpu.functions.front.http.requests import plain_headers
from pgpu.functions.front.http.service import Service
from pgpu.functions.front.states import State
from pgpu.functions.front.tickets import Ticket
from pgpu.functions.protocols.refusal import Refusal

_NOT_FOUND = Refusal(404, "not_found", "there is nothing at this path")
_BODY_TIMEOUT = Refusal(408, "body_timeout", "the body did not come in time", {"connection": "close"})
_encode = msgspec.json.Encoder().encode


class OrdinaryCall:
    """One request whose task waits for the answer."""

    def __init__(self, service: Service, ticket: Ticket, send: Send) -> None:
        self._answering = Answering(service, ticket, send, lambda: None)
        self._replied: asyncio.Future[tuple[Reply, int | None] | None] = asyncio.get_running_loop().create_future()

    def reply(self, reply: Reply, file: int | None) -> None:
        """Wake the task."""
        self._replied.set_result((reply, file))

    def chunk(self, chunk: Chunk, file: int | None) -> None:
        """Pass a piece on."""
        self._answering.chunk(chunk, file)

    def gone(self) -> None:
        """The client has left: the task has nobody to answer."""
        self._answering.gone()
        if not self._replied.done():
            self._replied.set_result(None)

    async def answer(self) -> None:
        """Wait and send."""
        replied = await self._replied
        if replied is not None:
            await self._answering.run(*replied)


class App:
    """The ASGI application."""

    def __init__(self, service: Service) -> None:
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
        if service.is_call(path) and method == "POST":
            await self._call(ticket, receive, send)
        else:
            await _send_reply(service, ticket, self._page(ticket), send)

    def _page(self, ticket: Ticket) -> Reply:
        page = self._pages.get(ticket.path) or self._description(ticket.path)
        if page is None and not self._service.is_call(ticket.path):
            return _NOT_FOUND.reply(ticket.request_id)
        if page is None or ticket.method not in {"GET", "HEAD"}:
            allowed = "GET, HEAD" if page is not None else "POST"
            return Refusal(405, "bad_method", f"this path takes {allowed}", {"allow": allowed}).reply(ticket.request_id)
        return page()

    async def _call(self, ticket: Ticket, receive: Receive, send: Send) -> None:
        service = self._service
        refused = _too_large(ticket, service.keeper.declaration.max_body_bytes) or service.desk.refusal()
        if refused is None:
            try:
                async with asyncio.timeout_at(ticket.deadline_seconds):
                    read = await read_body(receive, service.keeper.declaration.max_body_bytes)
            except ClientGoneError:
                return
            except TimeoutError:
                read = _BODY_TIMEOUT
            if not isinstance(read, Refusal):
                await self._serve(ticket, read, receive, send)
                return
            refused = read
        await _send_reply(service, ticket, refused.reply(ticket.request_id), send)

    async def _serve(self, ticket: Ticket, body: tuple[bytes, int | None], receive: Receive, send: Send) -> None:
        call = OrdinaryCall(self._service, ticket, send)
        watch = asyncio.get_running_loop().create_task(self._watch(ticket, receive, call))
        try:
            self._service.submit(ticket, *body, call)
            await call.answer()
        finally:
            watch.cancel()

    async def _watch(self, ticket: Ticket, receive: Receive, call: OrdinaryCall) -> None:
        """Notice that the client leaves."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._service.desk.abandon(ticket)
        call.gone()

    def _live(self) -> Reply:
        return self._health(200)

    def _ready(self) -> Reply:
        return self._health(200 if self._service.keeper.state is State.HOT else 503)

    def _health(self, status: int) -> Reply:
        keeper = self._service.keeper
        body = {"state": keeper.state, "reason": keeper.reason, "restarts": keeper.restarts}
        return Reply(status, {"content-type": "application/json"}, _encode(body))

    def _description(self, path: str) -> Callable[[], Reply] | None:
        body = self._service.keeper.pages.get(path)
        return None if body is None else lambda: Reply(200, {"content-type": "application/json"}, body)

    def _metrics(self) -> Reply:
        return Reply(200, {"content-type": "text/plain; version=0.0.4; charset=utf-8"}, self._service.metrics.text())


async def _send_reply(service: Service, ticket: Ticket, reply: Reply, send: Send) -> None:
    await Answering(service, ticket, send, lambda: None).run(reply, None)


def _too_large(ticket: Ticket, most_bytes: int) -> Refusal | None:
    length = ticket.headers.get("content-length", "0")
    return TOO_LARGE if length.isdigit() and int(length) > most_bytes else None
