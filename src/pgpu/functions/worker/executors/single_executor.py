"""The usual lane: one call, or one batch, at a time, on the main thread, with nothing but blocking reads.

While calls wait it sends replies together, unless the first of them would wait for longer than `_PATIENCE_SECONDS`. A
batch starts as soon as the lane is free, with what has come meanwhile. It refuses to run anything beside the handler:
a handler that is not thread-safe is safe here.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pgpu.functions.ipc.blocking_channel import BlockingChannel, GoneError
from pgpu.functions.ipc.messages import Reply
from pgpu.functions.ipc.started_mark import StartedMark
from pgpu.functions.protocols import ParsedCall
from pgpu.functions.worker.call_codec import CallCodec
from pgpu.functions.worker.executors.call_inbox import CallInbox, WorkItem
from pgpu.functions.worker.executors.reply_frames import queue_reply
from pgpu.functions.worker.executors.reply_stream import ReplyStream
from pgpu.functions.worker.executors.worker_commands import run_commands
from pgpu.functions.worker.shutdown import ShutdownSignal

_PATIENCE_SECONDS = 0.0005
"""How long a reply may wait for others, and a cancellation for a look: some twenty times what either costs."""


class SingleExecutor:
    """Serves the calls of one port in their order."""

    def __init__(self, port: BlockingChannel, mark: StartedMark, answerer: CallCodec, leave: ShutdownSignal) -> None:
        self._port, self._mark, self._answerer, self._leave = port, mark, answerer, leave
        self._inbox = CallInbox(port)
        self._looked_seconds = 0.0

    def serve(self) -> None:
        """Serve until the front leaves or says so; what came before that is served.

        Raises:
            GoneError: The front left while something was being sent to it.
        """
        turn = self._turn()
        inbox = self._inbox
        while True:
            if inbox.questions:
                run_commands(self._port, inbox, self._answerer.handler, self._leave)
            if inbox.calls:
                turn()
            elif self._leave.is_asked or self._port.is_ended:
                break
            else:
                self._port.flush()
                self._leave.wait(self._read)
                self._looked_seconds = time.monotonic()
        self._port.flush()

    def _turn(self) -> Callable[[], None]:
        """Choose once what is done with the next call."""
        serve = self._serving()
        calls = self._inbox.calls
        return lambda: serve(calls.popleft())

    def _serving(self) -> Callable[[WorkItem], None]:
        return self._serve_stream if self._answerer.handler.signature.is_stream else self._serve_one

    def _read(self) -> None:
        self._inbox.fill(is_waiting=True)

    def _look(self, now_seconds: float) -> None:
        """Send what was put off and see who left, if the last look was long ago."""
        if now_seconds - self._looked_seconds > _PATIENCE_SECONDS:
            self._port.flush()
            self._inbox.fill(is_waiting=False)
            self._looked_seconds = now_seconds

    def _finish(self, work: WorkItem, reply: Reply, began_seconds: float) -> float:
        del self._inbox.known[work.number]
        return queue_reply(self._port, work.number, reply, began_seconds)

    def _serve_one(self, work: WorkItem) -> None:
        began = time.monotonic()
        self._look(self._finish(work, self._answer(work), began))

    def _answer(self, work: WorkItem) -> Reply:
        answerer = self._answerer
        asked = answerer.read(work)
        if isinstance(asked, Reply):
            return asked
        self._begin(work)
        try:
            result = answerer.handler.call(asked.values, self._context(work, asked))
            return answerer.reply(work, asked, result)
        except BaseException as error:  # noqa: BLE001 - whatever the user's code raises, SystemExit too, ends its call alone
            return answerer.failures([work], error)[0]

    def _begin(self, work: WorkItem) -> None:
        self._mark.begin(work.number)

    def _context(self, work: WorkItem, asked: ParsedCall) -> Any:
        return self._answerer.context(work, asked, partial(self._is_cancelled, work))

    def _is_cancelled(self, work: WorkItem) -> bool:
        if not work.is_cancelled:
            self._inbox.fill(is_waiting=False)
        return work.is_cancelled

    def _serve_stream(self, work: WorkItem) -> None:
        began = time.monotonic()
        asked = self._answerer.read(work)
        reply = asked if isinstance(asked, Reply) else self._stream(work, asked)
        if reply is not None:
            self._finish(work, reply, began)
        else:
            del self._inbox.known[work.number]

    def _stream(self, work: WorkItem, asked: ParsedCall) -> Reply | None:
        """Send a stream; a reply where it is none, or where it failed before it began."""
        self._begin(work)
        try:
            items = self._answerer.handler.call(asked.values, self._context(work, asked))
            try:
                return self._send_items(work, asked, iter(items))
            finally:
                close = getattr(items, "close", None)
                if close is not None:
                    close()
        except GoneError:
            raise
        except BaseException as error:  # noqa: BLE001 - as for one call
            return self._answerer.failures([work], error)[0]

    def _send_items(self, work: WorkItem, asked: ParsedCall, items: Iterator[Any]) -> Reply | None:
        streaming = asked.form.streaming
        if streaming is None:
            return self._collected(work, asked, items)
        ReplyStream(self._port, work, self._look_now, self._wait_for_front).send(streaming, items)
        return None

    def _collected(self, work: WorkItem, asked: ParsedCall, items: Iterator[Any]) -> Reply:
        """Put all pieces into one answer; a caller that leaves ends a stream that may have no end."""
        pieces = []
        for item in items:
            pieces.append(item)
            self._look(time.monotonic())
            if work.is_cancelled:
                return self._answerer.cancelled(work)
        return self._answerer.reply(work, asked, pieces)

    def _look_now(self) -> None:
        self._inbox.fill(is_waiting=False)

    def _wait_for_front(self) -> None:
        self._inbox.fill(is_waiting=True)
        if self._port.is_ended:
            raise GoneError("the front has left")
