"""Executors of synchronous handlers: one call at a time, in threads, or in batches.

All block on plain reads and writes. Replies are sent together while calls wait, unless the first of them would be late by
more than `_PATIENCE_SECONDS`.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pgpu.functions.api import Batch, Declaration
from pgpu.functions.ipc.blocking_channel import BlockingChannel, GoneError
from pgpu.functions.ipc.call_messages import STREAM_WINDOW, Reply
from pgpu.functions.ipc.memory_files import StartedMark
from pgpu.functions.protocols import ParsedCall, StreamWriter
from pgpu.functions.worker.batch_run import BatchRun
from pgpu.functions.worker.call_codec import (
    CallCodec,
    WorkItem,
    describe_failure,
    queue_reply,
    send_end,
    send_head,
    send_piece,
)
from pgpu.functions.worker.call_inbox import CallInbox, ShutdownSignal, run_commands

_PATIENCE_SECONDS = 0.0005
"""Longest time that a reply is held back and the socket is not polled: about twenty times the cost of either."""

_STREAM_WAIT_SECONDS = 1.0
"""A thread that waits for stream credit checks this often whether the replica has left."""


class SingleExecutor:
    """Runs the calls of one channel in order on the main thread; safe for handlers that are not thread-safe."""

    def __init__(self, channel: BlockingChannel, mark: StartedMark, codec: CallCodec, shutdown: ShutdownSignal) -> None:
        self._channel, self._mark, self._codec, self._shutdown = channel, mark, codec, shutdown
        self._inbox = CallInbox(channel)
        # 0: the first call polls at once.
        self._polled_seconds = 0.0

    def run(self) -> None:
        """Run until the replica closes the connection or requests a shutdown; calls that arrived before are completed.

        Raises:
            GoneError: The replica closed the connection during a send.
        """
        run_next = self._choose_runner()
        inbox = self._inbox
        while True:
            # Commands first: a health probe must not wait behind a queue of calls.
            if inbox.commands:
                run_commands(inbox, self._codec.handler, self._shutdown)
            if inbox.calls:
                run_next()
            elif self._shutdown.is_set or self._channel.is_ended:
                break
            else:
                # Nothing to do: send what was held back before sleeping.
                self._channel.flush()
                self._shutdown.wait(self._wait_for_frames)
                self._polled_seconds = time.monotonic()
        self._channel.flush()

    def _choose_runner(self) -> Callable[[], None]:
        """Return the function that runs the next call; chosen once."""
        run_call = self._call_runner()
        calls = self._inbox.calls
        return lambda: run_call(calls.popleft())

    def _call_runner(self) -> Callable[[WorkItem], None]:
        return self._run_stream if self._codec.handler.signature.is_stream else self._run_call

    def _wait_for_frames(self) -> None:
        self._inbox.fill(is_waiting=True)

    def _poll(self, now_seconds: float) -> None:
        """Send queued replies and read new frames, if the last poll was more than `_PATIENCE_SECONDS` ago."""
        if now_seconds - self._polled_seconds > _PATIENCE_SECONDS:
            self._channel.flush()
            self._inbox.fill(is_waiting=False)
            self._polled_seconds = now_seconds

    def _finish(self, work: WorkItem, reply: Reply | None, began_seconds: float) -> float:
        """Queue a reply; None: the replica has taken the call back, or a stream was the reply."""
        del self._inbox.known[work.number]
        return began_seconds if reply is None else queue_reply(self._channel, work.number, reply, began_seconds)

    def _run_call(self, work: WorkItem) -> None:
        began = time.monotonic()
        self._poll(self._finish(work, self._answer(work), began))

    def _answer(self, work: WorkItem) -> Reply | None:
        codec = self._codec
        parsed = codec.read(work)
        if isinstance(parsed, Reply):
            return parsed
        if not self._begin(work):
            return None
        try:
            result = codec.handler.call(parsed.values, self._context(work, parsed))
            return codec.reply(work, parsed, result)
        except BaseException as error:  # noqa: BLE001 - any exception of the user's code, SystemExit too, ends only its call
            return codec.failure_replies([work], error)[0]

    def _begin(self, work: WorkItem) -> bool:
        return self._mark.begin(work.number)

    def _context(self, work: WorkItem, parsed: ParsedCall) -> Any:
        return self._codec.context(work, parsed, partial(self._is_cancelled, work))

    def _is_cancelled(self, work: WorkItem) -> bool:
        if not work.is_cancelled:
            self._inbox.fill(is_waiting=False)
        return work.is_cancelled

    def _run_stream(self, work: WorkItem) -> None:
        began = time.monotonic()
        parsed = self._codec.read(work)
        self._finish(work, parsed if isinstance(parsed, Reply) else self._stream(work, parsed), began)

    def _stream(self, work: WorkItem, parsed: ParsedCall) -> Reply | None:
        """Send a stream; return a reply where the caller takes no stream, or the handler failed before the first piece."""
        if not self._begin(work):
            return None
        try:
            items = self._codec.handler.call(parsed.values, self._context(work, parsed))
            try:
                if parsed.form.stream_writer is None:
                    return self._collect(work, parsed, iter(items))
                self._send_stream(work, parsed.form.stream_writer, iter(items))
                return None
            finally:
                # A generator that is not exhausted runs its `finally` blocks now, not at a garbage collection.
                close = getattr(items, "close", None)
                if close is not None:
                    close()
        except GoneError:
            raise
        except BaseException as error:  # noqa: BLE001 - as in _answer()
            return self._codec.failure_replies([work], error)[0]

    def _collect(self, work: WorkItem, parsed: ParsedCall, items: Iterator[Any]) -> Reply:
        """Join all pieces in one reply; stop when the caller leaves, since a stream may have no end."""
        pieces = []
        for item in items:
            pieces.append(item)
            self._poll(time.monotonic())
            if work.is_cancelled:
                return self._codec.cancelled_reply(work)
        return self._codec.reply(work, parsed, pieces)

    def _send_stream(self, work: WorkItem, writer: StreamWriter, items: Iterator[Any]) -> None:
        """Send the head once the first piece exists, then each piece as soon as there is credit for it.

        Raises:
            BaseException: From the handler before its first piece; nothing was sent then. A later exception breaks the
                stream off, since a proper end would mean that the body is complete.
            GoneError: The replica closed the connection.
        """
        began = time.monotonic()
        work.credit += STREAM_WINDOW
        first = [writer.piece(item) for item in (next(items, self),) if item is not self]
        send_head(self._channel, work.number, Reply(200, writer.headers), began)
        is_whole = not first or self._send_pieces(work, writer, first[0], items)
        if is_whole and writer.end:
            send_piece(self._channel, work.number, writer.end)
        send_end(self._channel, work.number, is_broken=not is_whole)

    def _send_pieces(self, work: WorkItem, writer: StreamWriter, piece: bytes, items: Iterator[Any]) -> bool:
        try:
            self._send_piece(work, piece)
            for item in items:
                if work.is_cancelled:
                    return False
                self._send_piece(work, writer.piece(item))
        except GoneError:
            raise
        except BaseException as error:  # noqa: BLE001 - as in _answer()
            if last := writer.broken(describe_failure(f"request {work.call.id}", error), work.call.id):
                send_piece(self._channel, work.number, last)
            return False
        return True

    def _send_piece(self, work: WorkItem, piece: bytes) -> None:
        self._read_frames()
        while work.credit <= 0 and not work.is_cancelled:
            self._wait_for_credit()
        work.credit -= 1
        send_piece(self._channel, work.number, piece)

    def _read_frames(self) -> None:
        self._inbox.fill(is_waiting=False)

    def _wait_for_credit(self) -> None:
        self._inbox.fill(is_waiting=True)
        if self._channel.is_ended:
            raise GoneError("the replica closed the connection")


class ThreadedExecutor(SingleExecutor):
    """Runs the calls of one channel in a fixed number of threads; the main thread reads, so cancellations arrive meanwhile."""

    def __init__(
        self,
        channel: BlockingChannel,
        mark: StartedMark,
        codec: CallCodec,
        shutdown: ShutdownSignal,
        concurrency: int,
    ) -> None:
        super().__init__(channel, mark, codec, shutdown)
        self._waiting: queue.SimpleQueue[WorkItem | None] = queue.SimpleQueue()
        self._mark_lock = threading.Lock()
        self._frames_read = threading.Condition()
        self._threads = [threading.Thread(target=self._run_thread, daemon=True) for _ in range(concurrency)]

    def run(self) -> None:
        """Run until the replica closes the connection or requests a shutdown; calls that started are completed."""
        for thread in self._threads:
            thread.start()
        inbox = self._inbox
        while not (self._shutdown.is_set or self._channel.is_ended):
            self._shutdown.wait(self._wait_for_frames)
            while inbox.calls:
                self._waiting.put(inbox.calls.popleft())
            if inbox.commands:
                run_commands(inbox, self._codec.handler, self._shutdown)
            with self._frames_read:
                self._frames_read.notify_all()
        # One end marker for each thread, behind the calls that are queued.
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    def _run_thread(self) -> None:
        run_call = self._call_runner()
        while (work := self._waiting.get()) is not None:
            try:
                run_call(work)
                self._channel.flush()
            except GoneError:
                return  # the main thread's next read detects the end of the connection

    def _begin(self, work: WorkItem) -> bool:
        with self._mark_lock:
            return self._mark.begin(work.number)

    def _poll(self, now_seconds: float) -> None:
        """Nothing to do: the main thread reads, and each thread sends its replies at once."""

    def _read_frames(self) -> None:
        """Nothing to do: the main thread reads."""

    def _is_cancelled(self, work: WorkItem) -> bool:
        return work.is_cancelled

    def _wait_for_credit(self) -> None:
        with self._frames_read:
            self._frames_read.wait(timeout=_STREAM_WAIT_SECONDS)
        if self._channel.is_ended:
            raise GoneError("the replica closed the connection")


class BatchExecutor(SingleExecutor):
    """Runs the calls of one channel in batches, on the main thread.

    A batch starts as soon as the executor is free, with the calls that have arrived; it waits for more only up to the
    batch's `max_wait`. `BatchRun` divides it.
    """

    def __init__(
        self,
        channel: BlockingChannel,
        mark: StartedMark,
        codec: CallCodec,
        shutdown: ShutdownSignal,
        declaration: Declaration,
    ) -> None:
        super().__init__(channel, mark, codec, shutdown)
        self._declaration, self._batch = declaration, declaration.batch or Batch(1)

    def _choose_runner(self) -> Callable[[], None]:
        return self._run_batch

    def _run_batch(self) -> None:
        run = BatchRun(self._gather(), self._codec, self._mark, self._declaration, self._finish)
        while run.next_group():
            try:
                results = list(self._codec.handler.call_batch(run.rows, run.contexts(self._is_cancelled)))
            except BaseException as error:  # noqa: BLE001 - any exception of the user's code ends only this group
                run.fail(error)
            else:
                run.answer(results)
            self._channel.flush()
            self._inbox.fill(is_waiting=False)

    def _gather(self) -> list[WorkItem]:
        """Take the calls of the next batch."""
        until = time.monotonic() + self._batch.max_wait_seconds
        calls = self._inbox.calls
        while len(calls) < self._batch.max_size and not self._channel.is_ended:
            if not self._channel.is_readable(max(0.0, until - time.monotonic())):
                break
            self._inbox.fill(is_waiting=False)
        return [calls.popleft() for _ in range(min(len(calls), self._batch.max_size))]
