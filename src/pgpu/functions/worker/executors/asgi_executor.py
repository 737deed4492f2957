"""The lane of an ASGI application: each call is one run of it, a task of one event loop, as in that of coroutines.

What a run sends leaves whole, or piece by piece, as it sends it. A caller that leaves is told as ASGI has it
(`http.disconnect`), and the run goes on. It refuses WebSockets, and a body that is not whole: calls travel with theirs.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial

from pgpu.errors import PgpuError
from pgpu.functions.ipc.blocking_channel import BlockingChannel, GoneError
from pgpu.functions.ipc.coalescing_loop import before_sleep
from pgpu.functions.ipc.messages import BODILESS, Reply
from pgpu.functions.worker.asgi_application import Message, read_response_start
from pgpu.functions.worker.executors.async_executor import AsyncExecutor, WakeSignal
from pgpu.functions.worker.executors.call_inbox import WorkItem
from pgpu.functions.worker.executors.reply_frames import STREAM_WINDOW, queue_reply, send_end, send_head, send_piece


class UnfinishedError(PgpuError):
    """The application's run ended before its answer did."""


class AsgiExecutor(AsyncExecutor):
    """Serves the calls of one port as runs of one application."""

    def _cancel(self, work: WorkItem) -> None:
        """Nothing: the run is told when it asks."""

    async def _serve_work(self, work: WorkItem) -> None:
        began = time.monotonic()
        if work.is_cancelled:
            self._finish(work, self._answerer.cancelled(work), began)
            return
        self._mark.begin(max(work.number, self._mark.last_begun))
        exchange = AsgiExchange(self._port, work, self._news, partial(self._send_soon, work, began))
        with contextlib.suppress(GoneError):
            await self._run(work, exchange)
        self._finish(work, None, began)

    async def _run(self, work: WorkItem, exchange: "AsgiExchange") -> None:
        try:
            await self._answerer.handler.target(work.call, exchange.receive, exchange.send)
            if work.is_cancelled:
                exchange.fail(self._answerer.cancelled(work))
            exchange.check_finished()
        except GoneError:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the user's code raises ends its call alone
            exchange.fail(self._answerer.failures([work], error)[0])

    def _send_soon(self, work: WorkItem, began_seconds: float, reply: Reply) -> None:
        queue_reply(self._port, work.number, reply, began_seconds)
        before_sleep(asyncio.get_running_loop(), self._flush)


class AsgiExchange:
    """One request and its answer, as far as it was sent."""

    def __init__(
        self, port: BlockingChannel, work: WorkItem, news: WakeSignal, answer: Callable[[Reply], None]
    ) -> None:
        """Begin.

        Args:
            port: Where pieces go.
            work: The call.
            news: Of what the front says.
            answer: Sends a whole answer.
        """
        self._port, self._work, self._news, self._answer = port, work, news, answer
        self._began_seconds = time.monotonic()
        self._head: Reply | None = None
        self._is_read = self._is_streaming = self._is_finished = False

    async def receive(self) -> Message:
        """Give the body, then wait for the end."""
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": bytes(self._work.body), "more_body": False}
        while not (self._work.is_cancelled or self._is_finished):
            await self._news.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take a part of the answer."""
        kind = message["type"]
        if kind == "http.response.start" and self._head is None:
            self._head = read_response_start(message)
        elif kind == "http.response.body" and self._head is not None and not self._is_finished:
            await self._send_body(self._head, _body(message), has_more=message.get("more_body", False))
        else:
            raise RuntimeError(f"an application does not send {kind} here")

    def check_finished(self) -> None:
        """Refuse half an answer. Raises UnfinishedError."""
        if not self._is_finished:
            raise UnfinishedError("the application ended before its answer did")

    def fail(self, reply: Reply) -> None:
        """End what was not answered to its end."""
        if self._is_finished:
            return
        self._is_finished = True
        if self._is_streaming:
            send_end(self._port, self._work.number, is_broken=True)
        else:
            self._answer(reply)

    async def _send_body(self, head: Reply, body: bytes, *, has_more: bool) -> None:
        if head.status in BODILESS:
            body = b""
        elif has_more or self._is_streaming:
            await self._stream(head, body)
        if has_more:
            return
        self._is_finished = True
        if self._is_streaming:
            send_end(self._port, self._work.number, is_broken=False)
        else:
            self._answer(Reply(head.status, head.headers, body))
        self._news.tell()

    async def _stream(self, head: Reply, piece: bytes) -> None:
        if not self._is_streaming:
            self._is_streaming = True
            self._work.credit += STREAM_WINDOW
            send_head(self._port, self._work.number, head, self._began_seconds)
        if piece:
            await self._send_piece(piece)

    async def _send_piece(self, piece: bytes) -> None:
        work = self._work
        while work.credit <= 0 and not work.is_cancelled:
            await self._news.wait()
        if not work.is_cancelled:
            work.credit -= 1
            send_piece(self._port, work.number, piece)


def _body(message: Message) -> bytes:
    body = message.get("body", b"")
    if not isinstance(body, bytes | bytearray | memoryview):
        raise TypeError(f"an answer's body is bytes, and not {type(body).__name__}")
    return bytes(body)
