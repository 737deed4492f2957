"""The short way for the usual call: a small POST whose body came at once, answered in one write.

uvicorn starts a task for each request, which waits twice and writes twice; that is half of what such a call costs. Here
the connection hands it to the desk itself, and the answer is written when it comes. Everything else, and every request
if uvicorn should change inside, goes the ordinary way through the ASGI application, with the same answers. It
refuses large bodies and slow streams: those wait, and tasks can.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from pgpu.functions.calls.messages import Chunk, Reply
from pgpu.functions.front.http.answering import Answering
from pgpu.functions.front.http.answers import header_lines, server_timing
from pgpu.functions.front.http.counter import Counter
from pgpu.functions.front.http.requests import plain_headers
from pgpu.functions.front.tickets import Ticket
from pgpu.functions.protocols.refusal import Refusal

LARGEST_DIRECT_BYTES = 60_000
"""Below the bytes at which uvicorn stops reading until somebody waits for them."""

LARGEST_HEAD_BYTES = 64 * 1024
"""Of a request's line and headers that came in several pieces. They must fit into a frame, and nobody's memory is theirs."""

_BODY_LATE = Refusal(408, "body_timeout", "the body did not come in time")
_HEAD_TOO_LARGE = Refusal(431, "head_too_large", "the request's line and headers are too large")


class DirectCall:
    """One request on the short way; stands where uvicorn's cycle has the event that its task would wait for."""

    __slots__ = ("_answering", "_counter", "_cycle", "_late", "_ticket")

    def __init__(self, counter: Counter, cycle: RequestResponseCycle, ticket: Ticket) -> None:
        self._counter, self._cycle, self._ticket = counter, cycle, ticket
        self._answering: Answering | None = None
        self._late: asyncio.TimerHandle | None = None

    def expect_body(self) -> None:
        """The rest of the body is not there yet: wait no longer than the request lasts."""
        if self._late is None:
            self._late = asyncio.get_running_loop().call_at(self._ticket.deadline_seconds, self._refuse_late)

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
            self._answering = Answering(self._counter.warm(ticket), ticket, cycle.send, cycle.transport)
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


class Connection(HttpToolsProtocol):
    """uvicorn's connection, with the short way."""

    counter: Counter
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Parse what came; end a connection whose head or body does not end."""
        super().data_received(data)
        scope, cycle = self.scope, self.cycle
        if cycle is not None and cycle.more_body and isinstance(cycle.message_event, DirectCall):
            cycle.message_event.expect_body()
        if scope is None or "method" in scope or self.transport.is_closing():
            self._head_bytes = 0
            return
        self._head_bytes += len(data)
        if self._head_bytes > LARGEST_HEAD_BYTES:
            body = bytes(_HEAD_TOO_LARGE.reply("").body)
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[431] + head + body)
            self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        scope = cycle.scope
        if scope["method"] == "POST" and self.counter.is_call(scope["path"]) and not cycle.waiting_for_100_continue:
            headers = plain_headers(scope["headers"])
            ticket = self.counter.direct(scope, headers) if _is_small(headers.get("content-length")) else None
            if ticket is not None:
                direct = DirectCall(self.counter, cycle, ticket)
                cycle.message_event = direct  # type: ignore[assignment] # likewise
                direct.set()
                return
        super()._start_asgi_task(cycle, app)


def _is_small(content_length: str | None) -> bool:
    return content_length is not None and content_length.isdecimal() and int(content_length) <= LARGEST_DIRECT_BYTES
