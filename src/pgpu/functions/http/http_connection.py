"""uvicorn's HTTP connection with a direct way for the usual call: a small POST with a body that arrives at once.

uvicorn starts a task for each request, which waits twice and writes twice: half of such a call's cost. On the direct way the
connection passes the call to the `RequestHandler` itself and writes the answer when it arrives. Large bodies and slow
streams need a task and go through the ASGI application, with the same answers; so does everything if uvicorn's private
`_start_asgi_task` should change. The upper bound of uvicorn in pyproject.toml follows from the private parts used here.
"""

import asyncio
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from pgpu.functions.http.request_handler import RequestHandler, plain_headers
from pgpu.functions.http.response_writer import ResponseWriter, header_lines, server_timing
from pgpu.functions.ipc.call_messages import Chunk, Reply
from pgpu.functions.protocols.call_refusal import Refusal
from pgpu.functions.requests.request_queue import PendingRequest
from pgpu.server.quiet_server import QuietServer

LARGEST_DIRECT_BYTES = 60_000
"""Below the size at which uvicorn stops reading until the application takes the body."""

LARGEST_HEAD_BYTES = 64 * 1024
"""Of a request's line and headers that arrive in several pieces; they must fit into a frame."""

_KEEP_ALIVE_SECONDS = 75
_BODY_LATE = Refusal(408, "body_timeout", "the body did not come in time")
_HEAD_TOO_LARGE = Refusal(431, "head_too_large", "the request's line and headers are too large")
_UPGRADE_NAMES = frozenset({b"upgrade", b"http2-settings"})


class HttpServer(QuietServer):
    """uvicorn's server without its signal handlers: a replica drains first."""

    def __init__(self, app: Any, connection: type["HttpConnection"], grace_seconds: int | None = None) -> None:
        """Configure the server.

        Args:
            app: The ASGI application.
            connection: Class of the connections.
            grace_seconds: Time that requests in flight get at the end; None: no limit.
        """
        super().__init__(
            uvicorn.Config(
                app, http=connection, ws="none", lifespan="off", log_level="critical", access_log=False,
                server_header=False, timeout_keep_alive=_KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=grace_seconds,
            )
        )  # fmt: skip

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class DirectCall:
    """The sink of one request on the direct way.

    Replaces the event on which uvicorn's task would wait: uvicorn calls `set()` when the body is complete or the client leaves.
    """

    __slots__ = ("_cycle", "_handler", "_late", "_request", "_writer")

    def __init__(self, handler: RequestHandler, cycle: RequestResponseCycle, request: PendingRequest) -> None:
        self._handler, self._cycle, self._request = handler, cycle, request
        self._writer: ResponseWriter | None = None
        self._late: asyncio.TimerHandle | None = None

    def expect_body(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for the rest of the body at most until the request's deadline."""
        if self._late is None:
            self._late = loop.call_at(self._request.deadline_seconds, self._refuse_late)

    def _refuse_late(self) -> None:
        cycle = self._cycle
        if cycle.more_body and not cycle.disconnected:
            cycle.keep_alive = False
            self.reply(_BODY_LATE.reply(self._request.request_id), None)

    def set(self) -> None:
        """Submit the request if its body is complete; abandon it if the client has left."""
        cycle, request = self._cycle, self._request
        # uvicorn calls set() both for the end of the body and for a disconnect.
        if cycle.disconnected:
            self._handler.abandon(request)
            if self._writer is not None:
                self._writer.abort()
        elif not cycle.more_body and not cycle.response_started and request.sink is None:
            if self._late is not None:
                self._late.cancel()
            self._handler.submit(request, bytes(cycle.body), None, self)

    def clear(self) -> None:
        """Nothing to do: no task waits for this event."""

    def reply(self, reply: Reply, file: int | None) -> None:
        """Write the answer; one in pieces is left to a task."""
        cycle, request = self._cycle, self._request
        if file is not None or not reply.is_last:
            replica = self._handler.replica_of(request)
            self._writer = ResponseWriter(replica, request, cycle.send, cycle.transport)
            self._writer.start(reply, file)
            return
        if cycle.disconnected:
            return
        try:
            head = self._head(reply)
        except (ValueError, KeyError):  # a header that is not one line of Latin-1, or an unknown status
            cycle.transport.close()
            return
        # The states that uvicorn itself sets in send(); on_response() then starts a pipelined request.
        cycle.response_started = cycle.response_complete = True
        cycle.message_event = _DONE  # type: ignore[assignment] # has the methods that uvicorn calls
        cycle.transport.write(b"".join((*head, reply.body)))
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()

    def _head(self, reply: Reply) -> list[bytes]:
        cycle, request = self._cycle, self._request
        lines = header_lines(reply, request, server_timing(self._handler.replica_of(request), request, reply))
        closing = "" if cycle.keep_alive else "connection: close\r\n"
        own = f"{lines}content-length: {len(reply.body)}\r\n{closing}\r\n".encode("latin-1")
        return [STATUS_LINE[reply.status], *[b"%b: %b\r\n" % each for each in cycle.default_headers], own]

    def chunk(self, chunk: Chunk, file: int | None) -> None:
        if self._writer is not None:
            self._writer.chunk(chunk, file)


class _Done:
    """Stands in a completed cycle for its DirectCall: the two would otherwise keep each other until a garbage collection."""

    def set(self) -> None:
        """Nothing to do."""


_DONE = _Done()


class HttpConnection(HttpToolsProtocol):
    """uvicorn's connection with the direct way."""

    handler: RequestHandler
    _head_bytes = 0
    _quiet_since_seconds = math.inf
    """Start of the time without a request, on the loop's clock; infinite during a request."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; end a connection with a head that is too large, and set the timer of an incomplete body."""
        self._quiet_since_seconds = math.inf
        rest: bytes | memoryview | None = data
        try:
            while rest:
                rest = self._parse(rest)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        scope, cycle = self.scope, self.cycle
        if cycle is not None and cycle.more_body and isinstance(cycle.message_event, DirectCall):
            cycle.message_event.expect_body(self.loop)
        if scope is None or "method" in scope or self.transport.is_closing():
            self._head_bytes = 0
            return
        # httptools has no limit for a head that arrives in pieces; "method" is in the scope once the head is complete.
        self._head_bytes += len(data)
        if self._head_bytes > LARGEST_HEAD_BYTES:
            body = bytes(_HEAD_TOO_LARGE.reply("").body)
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[431] + head + body)
            self.transport.close()

    def _parse(self, data: bytes | memoryview) -> memoryview | None:
        """Parse as HTTP/1.1, also where a client offers an upgrade to HTTP/2.

        Returns:
            The bytes after a head with an upgrade: the parser reads no body there, so the head is parsed again without it.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            method, version = self.parser.get_method(), self.parser.get_http_version()
            if method == b"CONNECT":
                raise httptools.HttpParserInvalidMethodError("CONNECT is not supported") from None
            head = _head_without_upgrade(b"%b %b HTTP/%b" % (method, self.url, version.encode()), self.headers)
            # A new parser: the old one is in upgrade mode and would treat the body as another protocol.
            self.parser = httptools.HttpRequestParser(self)
            self.parser.feed_data(head)
            return memoryview(data)[upgrade.args[0] :]
        return None

    def on_headers_complete(self) -> None:
        """Begin a request, unless its head is parsed again."""
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End a request's body, unless its head is parsed again."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Begin a pipelined request or wait for the next, with one keep-alive timer for the connection's whole life.

        uvicorn cancels a timer and sets another for each request: a tenth of a short call's cost here.
        """
        self._quiet_since_seconds = math.inf if self.pipeline else self.loop.time()
        if self.pipeline or self.timeout_keep_alive_task is None or self.transport.is_closing():
            super().on_response_complete()
        else:
            self.server_state.total_requests += 1
            self.flow.resume_reading()

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it was quiet for long enough; else set the timer again."""
        # Infinite during a request: the timer is then set for one more period.
        left_seconds = self._quiet_since_seconds + self.timeout_keep_alive - self.loop.time()
        if left_seconds > 0:
            after = min(left_seconds, self.timeout_keep_alive)
            self.timeout_keep_alive_task = self.loop.call_later(after, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        scope = cycle.scope
        if scope["method"] == "POST" and self.handler.is_call(scope["path"]) and not cycle.waiting_for_100_continue:
            headers = plain_headers(scope["headers"])
            length = headers.get("content-length")
            is_small = length is not None and length.isdecimal() and int(length) <= LARGEST_DIRECT_BYTES
            # A paused transport means that the client is slow to read: only a task can wait for it.
            is_direct = is_small and not self.flow.write_paused
            request = self.handler.accept_direct(scope, headers) if is_direct else None
            if request is not None:
                direct = DirectCall(self.handler, cycle, request)
                cycle.message_event = direct  # type: ignore[assignment] # has the methods that uvicorn calls
                direct.set()
                return
        super()._start_asgi_task(cycle, app)


def _head_without_upgrade(line: bytes, raw: Iterable[tuple[bytes, bytes]]) -> bytes:
    lines = [line]
    for name, value in raw:
        if name == b"connection":
            words = [word.strip() for word in value.split(b",")]
            lines.append(b"%b: %b" % (name, b", ".join(each for each in words if each.lower() not in _UPGRADE_NAMES)))
        elif name not in _UPGRADE_NAMES:
            lines.append(b"%b: %b" % (name, value))
    return b"\r\n".join([*lines, b"\r\n"])
