"""The short way for the usual call: a small POST whose body came at once, answered in one write.

uvicorn starts a task for each request, which waits twice and writes twice; that is half of what such a call costs. Here
the connection hands it to the desk itself, and the answer is written when it comes. Everything else, and every request
if uvicorn should change inside, goes the ordinary way through the ASGI application, with the same answers. It
refuses large bodies and slow streams: those wait, and tasks can.
"""

import asyncio
import math
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from pgpu.functions.http.request_handler import RequestHandler
from pgpu.functions.http.request_heads import plain_head, plain_headers
from pgpu.functions.http.response_headers import header_lines, server_timing
from pgpu.functions.http.response_writer import ResponseWriter
from pgpu.functions.ipc.messages import Chunk, Reply
from pgpu.functions.protocols.call_refusal import Refusal
from pgpu.functions.requests.pending_request import PendingRequest

LARGEST_DIRECT_BYTES = 60_000
"""Below the bytes at which uvicorn stops reading until somebody waits for them."""

LARGEST_HEAD_BYTES = 64 * 1024
"""Of a request's line and headers that came in several pieces. They must fit into a frame, and nobody's memory is theirs."""

_BODY_LATE = Refusal(408, "body_timeout", "the body did not come in time")
_HEAD_TOO_LARGE = Refusal(431, "head_too_large", "the request's line and headers are too large")


class DirectCall:
    """One request on the short way; stands where uvicorn's cycle has the event that its task would wait for."""

    __slots__ = ("_answering", "_counter", "_cycle", "_late", "_ticket")

    def __init__(self, counter: RequestHandler, cycle: RequestResponseCycle, ticket: PendingRequest) -> None:
        self._counter, self._cycle, self._ticket = counter, cycle, ticket
        self._answering: ResponseWriter | None = None
        self._late: asyncio.TimerHandle | None = None

    def expect_body(self, loop: asyncio.AbstractEventLoop) -> None:
        """The rest of the body is not there yet: wait no longer than the request lasts."""
        if self._late is None:
            self._late = loop.call_at(self._ticket.deadline_seconds, self._refuse_late)

    def _refuse_late(self) -> None:
        cycle = self._cycle
        if cycle.more_body and not cycle.disconnected:
            cycle.keep_alive = False
            self.reply(_BODY_LATE.reply(self._ticket.request_id), None)

    def set(self) -> None:
        """Something happened: the body is whole, or the client has left."""
        cycle, ticket = self._cycle, self._ticket
        if cycle.disconnected:
            self._counter.abandon(ticket)
            if self._answering is not None:
                self._answering.gone()
        elif not cycle.more_body and not cycle.response_started and ticket.asker is None:
            if self._late is not None:
                self._late.cancel()
            self._counter.submit(ticket, bytes(cycle.body), None, self)

    def clear(self) -> None:
        """Nobody waits for it: there is nothing to forget."""

    def reply(self, reply: Reply, file: int | None) -> None:
        """Write the answer, or leave it to a task if it comes in pieces."""
        cycle, ticket = self._cycle, self._ticket
        if file is not None or not reply.is_last:
            self._answering = ResponseWriter(self._counter.warm(ticket), ticket, cycle.send, cycle.transport)
            self._answering.begin(reply, file)
            return
        if cycle.disconnected:
            return
        try:
            head = self._head(reply)
        except (
            ValueError,
            KeyError,
        ):  # what no HTTP can say: a header that is no line of Latin-1, a status that is none
            cycle.transport.close()
            return
        cycle.response_started = cycle.response_complete = True
        cycle.message_event = _DONE  # type: ignore[assignment] # it has what is asked of one
        cycle.transport.write(b"".join((*head, reply.body)))
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()

    def _head(self, reply: Reply) -> list[bytes]:
        cycle, ticket = self._cycle, self._ticket
        lines = header_lines(reply, ticket, server_timing(self._counter.warm(ticket), ticket, reply))
        closing = "" if cycle.keep_alive else "connection: close\r\n"
        own = f"{lines}content-length: {len(reply.body)}\r\n{closing}\r\n".encode("latin-1")
        return [STATUS_LINE[reply.status], *[b"%b: %b\r\n" % each for each in cycle.default_headers], own]

    def chunk(self, chunk: Chunk, file: int | None) -> None:
        """Pass a piece on to the task."""
        if self._answering is not None:
            self._answering.chunk(chunk, file)


class _Done:
    """What a cycle has when all was said: else each would keep its call, and its call it, until Python counts."""

    def set(self) -> None:
        """Nothing is left to do."""


_DONE = _Done()


class HttpConnection(HttpToolsProtocol):
    """uvicorn's connection, with the short way."""

    counter: RequestHandler
    _head_bytes = 0
    _quiet_since_seconds = math.inf
    """Since when nobody asks anything over it, on the loop's clock; infinite while somebody does."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Look no more whether it is quiet."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Parse what came; end a connection whose head or body does not end."""
        self._quiet_since_seconds = math.inf
        self._parse(data)
        scope, cycle = self.scope, self.cycle
        if cycle is not None and cycle.more_body and isinstance(cycle.message_event, DirectCall):
            cycle.message_event.expect_body(self.loop)
        if scope is None or "method" in scope or self.transport.is_closing():
            self._head_bytes = 0
            return
        self._head_bytes += len(data)
        if self._head_bytes > LARGEST_HEAD_BYTES:
            body = bytes(_HEAD_TOO_LARGE.reply("").body)
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[431] + head + body)
            self.transport.close()

    def _parse(self, data: bytes) -> None:
        """Have it parsed as HTTP/1.1, also where a client would rather speak HTTP/2 or anything else."""
        rest: bytes | memoryview | None = data
        try:
            while rest:
                rest = self._parse_on(rest)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _parse_on(self, data: bytes | memoryview) -> memoryview | None:
        """Parse, and return what lies behind a head that asks for another protocol: the parser reads no body there."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as asked:
            self._begin_plainly()
            return memoryview(data)[asked.args[0] :]
        return None

    def _begin_plainly(self) -> None:
        """Have the head parsed anew, as if nothing but HTTP/1.1 had been asked for."""
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if method == b"CONNECT":
            raise httptools.HttpParserInvalidMethodError("there is nothing to connect to")
        head = plain_head(b"%b %b HTTP/%b" % (method, self.url, version.encode()), self.headers)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(head)

    def on_headers_complete(self) -> None:
        """Begin a request, unless its head is to be parsed anew."""
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End a request's body, likewise."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Begin what was pipelined, or wait for what comes next: with one timer, which goes on through all requests.

        uvicorn ends one with each request and sets another: a tenth of what a short call costs here.
        """
        self._quiet_since_seconds = math.inf if self.pipeline else self.loop.time()
        if self.pipeline or self.timeout_keep_alive_task is None or self.transport.is_closing():
            super().on_response_complete()
        else:
            self.server_state.total_requests += 1
            self.flow.resume_reading()

    def timeout_keep_alive_handler(self) -> None:
        """Close it if it was quiet for long enough; else look again when it may have been."""
        left_seconds = self._quiet_since_seconds + self.timeout_keep_alive - self.loop.time()
        if left_seconds > 0:
            after = min(left_seconds, self.timeout_keep_alive)
            self.timeout_keep_alive_task = self.loop.call_later(after, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        scope = cycle.scope
        if scope["method"] == "POST" and self.counter.is_call(scope["path"]) and not cycle.waiting_for_100_continue:
            headers = plain_headers(scope["headers"])
            is_short = _is_small(headers.get("content-length")) and not self.flow.write_paused
            ticket = self.counter.direct(scope, headers) if is_short else None
            if ticket is not None:
                direct = DirectCall(self.counter, cycle, ticket)
                cycle.message_event = direct  # type: ignore[assignment] # likewise
                direct.set()
                return
        super()._start_asgi_task(cycle, app)


def _is_small(content_length: str | None) -> bool:
    return content_length is not None and content_length.isdecimal() and int(content_length) <= LARGEST_DIRECT_BYTES
