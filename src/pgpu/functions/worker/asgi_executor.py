"""ASGI applications as handlers: lifespan as `warmup` and `close`, and an executor that runs one application task per call.

What a task sends leaves in one reply, or in pieces as the task sends them. A caller that leaves is reported to the
application as `http.disconnect`, and the task goes on. WebSockets are not supported; a request's body is always complete.

Source: ASGI 3.0, HTTP connection scope 2.3 and lifespan 2.0; uvicorn's own code runs the lifespan.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import partial
from typing import Any

import uvicorn
from uvicorn.lifespan.on import LifespanOn

from pgpu.errors import PgpuError
from pgpu.functions.handler import Handler
from pgpu.functions.ipc.blocking_channel import BlockingChannel, GoneError
from pgpu.functions.ipc.call_messages import BODILESS, STREAM_WINDOW, Call, Reply
from pgpu.functions.worker.async_executor import AsyncExecutor, WakeSignal
from pgpu.functions.worker.call_codec import WorkItem, send_end, send_head, send_piece
from pgpu.structs import replace
from pgpu.units import KIB

Message = MutableMapping[str, Any]
"""An ASGI message: a dict with a `type`."""

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_ASGI = {"version": "3.0", "spec_version": "2.3"}
_CONNECTION_HEADERS = frozenset(
    {"connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)
"""Dropped from the application's headers: the replica's HTTP server writes its own."""

_STATUSES = range(200, 600)
_MOST_HEAD_BYTES = 64 * KIB
"""Of a response's headers; must fit into a frame, and clients accept no more."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE = re.compile(r"[^\r\n\0]*")


class StartupFailedError(PgpuError):
    """The application's lifespan startup failed; the reason is in the log."""


class UnfinishedError(PgpuError):
    """The application returned before its response was complete."""


def mount_application(handler: Handler, name: str) -> Handler:
    """Return a handler with a target that takes a call instead of a scope, and with the lifespan as `warmup` and `close`.

    Args:
        handler: Of the application.
        name: Of the function: a gateway serves the application below `/functions/NAME`.
    """
    config = uvicorn.Config(
        handler.target, interface="asgi3", http=asyncio.Protocol, ws="none", log_config=None, proxy_headers=False
    )
    # Without uvicorn's server: only its implementation of the lifespan protocol is used.
    lifespan = LifespanOn(config)

    async def start() -> None:
        await lifespan.startup()
        if lifespan.should_exit:
            raise StartupFailedError("the application cannot start")

    def run(call: Call, receive: Receive, send: Send) -> Awaitable[None]:
        scope = {**build_scope(call, f"/functions/{name}"), "state": lifespan.state.copy()}
        running: Awaitable[None] = handler.target(scope, receive, send)
        return running

    return replace(handler, target=run, warmup=start, close=lifespan.shutdown)


def build_scope(call: Call, root: str) -> Message:
    """Return a call's ASGI scope.

    Args:
        call: Its head.
        root: The application's root path, if the call's path is below it.
    """
    is_below = call.path == root or call.path.startswith(f"{root}/")
    headers = {**call.headers, "x-request-id": call.id}
    return {
        "type": "http",
        "asgi": _ASGI,
        "http_version": "1.1",
        "method": call.method,
        "scheme": "http",
        "path": f"{root}/" if call.path == root else call.path,
        "query_string": call.query.encode("latin-1"),
        "root_path": root if is_below else "",
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
        "client": None,
        "server": None,
    }


def read_response_start(start: Message) -> Reply:
    """Decode `http.response.start`.

    Raises:
        ValueError: The status or a header is not valid in HTTP.
    """
    status = start["status"]
    if status not in _STATUSES:
        raise ValueError(f"{status!r} is not the status of a response")
    return Reply(int(status), _join_headers(start.get("headers", ())))


def _join_headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Join headers of one name. Set-Cookie cannot be joined: each gets another spelling, which HTTP treats as one name."""
    headers: dict[str, str] = {}
    cookies = size_bytes = 0
    for raw, value in pairs:
        name, text = raw.decode("latin-1").lower(), value.decode("latin-1")
        size_bytes += len(name) + len(text)
        if size_bytes > _MOST_HEAD_BYTES:
            raise ValueError(f"the headers of a response take more than {_MOST_HEAD_BYTES // KIB} KiB")
        if not (_NAME.fullmatch(name) and _VALUE.fullmatch(text)):
            raise ValueError(f"{name!r}: {text!r} is not a valid header")
        if name == "set-cookie":
            headers[_spell(name, cookies)] = text
            cookies += 1
        elif name not in _CONNECTION_HEADERS:
            headers[name] = f"{headers[name]}, {text}" if name in headers else text
    return headers


def _spell(name: str, number: int) -> str:
    """Spell a name with upper-case letters where the bits of a number are set.

    Raises:
        ValueError: The name has fewer spellings.
    """
    spelt, rest = "", number
    for letter in name:
        spelt += letter.upper() if rest & 1 else letter
        rest >>= letter.isalpha()
    if rest:
        raise ValueError(f"a response cannot have {name} more than {number} times")
    return spelt


class AsgiExecutor(AsyncExecutor):
    """Runs the calls of one channel as tasks of one application."""

    def _cancel(self, work: WorkItem) -> None:
        """Nothing to do: the application gets `http.disconnect` when it calls `receive`."""

    async def _run_call(self, work: WorkItem) -> None:
        began = time.monotonic()
        if work.is_cancelled:
            self._finish(work, self._codec.cancelled_reply(work), began)
            return
        if not self._mark.begin(work.number):
            self._finish(work, None, began)
            return
        exchange = AsgiExchange(self._channel, work, self._frames_read, partial(self._send_soon, work, began))
        with contextlib.suppress(GoneError):
            await self._run_application(work, exchange)
        self._finish(work, None, began)

    async def _run_application(self, work: WorkItem, exchange: "AsgiExchange") -> None:
        try:
            await self._codec.handler.target(work.call, exchange.receive, exchange.send)
            if work.is_cancelled:
                exchange.fail(self._codec.cancelled_reply(work))
            exchange.check_finished()
        except GoneError:
            raise
        except BaseException as error:  # noqa: BLE001 - any exception of the user's code ends only its call
            exchange.fail(self._codec.failure_replies([work], error)[0])


class AsgiExchange:
    """One request, with the part of its response that was sent."""

    def __init__(
        self, channel: BlockingChannel, work: WorkItem, frames_read: WakeSignal, answer: Callable[[Reply], None]
    ) -> None:
        """Begin.

        Args:
            channel: Takes the pieces of a stream.
            work: The call.
            frames_read: Notified after each read from the channel.
            answer: Sends a complete reply.
        """
        self._channel, self._work, self._frames_read, self._answer = channel, work, frames_read, answer
        self._began_seconds = time.monotonic()
        self._head: Reply | None = None
        self._is_read = self._is_streaming = self._is_finished = False

    async def receive(self) -> Message:
        """ASGI's `receive`: the body at once, then `http.disconnect` at the end."""
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": bytes(self._work.body), "more_body": False}
        while not (self._work.is_cancelled or self._is_finished):
            await self._frames_read.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start" and self._head is None:
            self._head = read_response_start(message)
        elif kind == "http.response.body" and self._head is not None and not self._is_finished:
            body = message.get("body", b"")
            if not isinstance(body, bytes | bytearray | memoryview):
                raise TypeError(f"the body of a response is bytes, not {type(body).__name__}")
            await self._send_body(self._head, bytes(body), has_more=message.get("more_body", False))
        else:
            raise RuntimeError(f"an application may not send {kind} here")

    def check_finished(self) -> None:
        """Raise UnfinishedError if the response is not complete."""
        if not self._is_finished:
            raise UnfinishedError("the application returned before its response was complete")

    def fail(self, reply: Reply) -> None:
        """End an incomplete response: break the stream off, or send this reply instead."""
        if self._is_finished:
            return
        self._is_finished = True
        if self._is_streaming:
            send_end(self._channel, self._work.number, is_broken=True)
        else:
            self._answer(reply)

    async def _send_body(self, head: Reply, body: bytes, *, has_more: bool) -> None:
        # A body after 204 or 304 would be read as the next response.
        if head.status in BODILESS:
            body = b""
        elif has_more or self._is_streaming:
            await self._stream(head, body)
        if has_more:
            return
        self._is_finished = True
        if self._is_streaming:
            send_end(self._channel, self._work.number, is_broken=False)
        else:
            self._answer(Reply(head.status, head.headers, body))
        # A task that waits in receive() gets its `http.disconnect`.
        self._frames_read.notify()

    async def _stream(self, head: Reply, piece: bytes) -> None:
        work = self._work
        if not self._is_streaming:
            self._is_streaming = True
            work.credit += STREAM_WINDOW
            send_head(self._channel, work.number, head, self._began_seconds)
        if not piece:
            return
        while work.credit <= 0 and not work.is_cancelled:
            await self._frames_read.wait()
        if not work.is_cancelled:
            work.credit -= 1
            send_piece(self._channel, work.number, piece)
