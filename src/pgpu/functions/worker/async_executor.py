"""Executor of asynchronous handlers: each call, or each batch, is a task of one event loop.

A cancelled call's task is cancelled. At most `concurrency` tasks run at a time, by default one: an asynchronous handler may
keep state between its awaits.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from pgpu.functions.api import Batch, Declaration
from pgpu.functions.ipc.async_channel import before_sleep
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


class WakeSignal:
    """Wakes all tasks that wait for the next frames; unlike an `asyncio.Event` it needs no reset."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        # Replaced, not cleared: tasks that wait later wait for the next notification.
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self) -> None:
        await self._event.wait()


class AsyncExecutor:
    """Runs the calls of one channel as tasks."""

    def __init__(
        self,
        channel: BlockingChannel,
        mark: StartedMark,
        codec: CallCodec,
        shutdown: ShutdownSignal,
        declaration: Declaration,
    ) -> None:
        self._channel, self._mark, self._codec, self._shutdown = channel, mark, codec, shutdown
        self._declaration, self._concurrency, self._batch = declaration, declaration.concurrency, declaration.batch
        self._inbox = CallInbox(channel, on_cancelled=self._cancel)
        self._tasks: dict[int, asyncio.Task[Any] | None] = {}
        """Of the calls that run. A task that is cancelled before its first step would leave its call without a reply."""

        self._running: set[asyncio.Task[None]] = set()
        self._frames_read = WakeSignal()

    async def run(self) -> None:
        """Run until the replica closes the connection or requests a shutdown; calls that started are completed."""
        loop = asyncio.get_running_loop()
        self._shutdown.on_set = partial(loop.call_soon_threadsafe, self._frames_read.notify)
        loop.add_reader(self._channel.fileno(), self._read)
        while not (self._shutdown.is_set or self._channel.is_ended):
            await self._frames_read.wait()
        if not self._channel.is_ended:
            # Calls that started are completed; those in the inbox return to the replica's queue.
            await asyncio.gather(*self._running, return_exceptions=True)
            self._channel.flush()
        loop.remove_reader(self._channel.fileno())

    def _read(self) -> None:
        self._inbox.fill(is_waiting=False)
        if self._inbox.commands:
            run_commands(self._inbox, self._codec.handler, self._shutdown)
        self._start()
        self._frames_read.notify()

    def _cancel(self, work: WorkItem) -> None:
        if (task := self._tasks.get(work.number)) is not None:
            task.cancel()

    def _start(self) -> None:
        """Start tasks up to the concurrency."""
        while self._inbox.calls and len(self._running) < self._concurrency:
            if self._batch is not None:
                task = asyncio.create_task(self._run_batch(self._batch))
            else:
                task = asyncio.create_task(self._run_call(self._inbox.calls.popleft()))
            self._running.add(task)
            task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._start()

    def _finish(self, work: WorkItem, reply: Reply | None, began_seconds: float) -> None:
        self._tasks.pop(work.number, None)
        del self._inbox.known[work.number]
        if reply is not None:
            self._send_soon(work, began_seconds, reply)

    def _send_soon(self, work: WorkItem, began_seconds: float, reply: Reply) -> None:
        queue_reply(self._channel, work.number, reply, began_seconds)
        before_sleep(asyncio.get_running_loop(), self._flush)

    def _flush(self) -> None:
        if not self._channel.is_ended:
            with contextlib.suppress(GoneError):  # the next read detects the end of the connection
                self._channel.flush()

    async def _run_call(self, work: WorkItem) -> None:
        began = time.monotonic()
        parsed = self._codec.read(work)
        if isinstance(parsed, Reply):
            self._finish(work, parsed, began)
            return
        if not self._mark.begin(work.number):
            self._finish(work, None, began)
            return
        self._tasks[work.number] = asyncio.current_task()
        try:
            reply = await self._answer(work, parsed)
        except GoneError:
            reply = None
        except BaseException as error:  # noqa: BLE001 - any exception of the user's code, a cancellation too, ends only its call
            reply = self._codec.failure_replies([work], error)[0]
        self._finish(work, reply, began)

    async def _answer(self, work: WorkItem, parsed: ParsedCall) -> Reply | None:
        handler = self._codec.handler
        result = handler.call(parsed.values, self._codec.context(work, parsed, lambda: work.is_cancelled))
        if not handler.signature.is_stream:
            return self._codec.reply(work, parsed, await result)
        if parsed.form.stream_writer is None:
            return self._codec.reply(work, parsed, [item async for item in result])
        async with contextlib.aclosing(result) as items:
            await self._stream(work, parsed.form.stream_writer, items)
        return None

    async def _stream(self, work: WorkItem, writer: StreamWriter, items: AsyncIterator[Any]) -> None:
        """Send a stream, as `SingleExecutor` does: an exception before the first piece is raised, a later one breaks it off."""
        began, work.credit = time.monotonic(), work.credit + STREAM_WINDOW
        first = [writer.piece(item) for item in [await anext(items, self)] if item is not self]
        send_head(self._channel, work.number, Reply(200, writer.headers), began)
        is_whole = True
        try:
            for piece in first:
                await self._send_piece(work, piece)
            async for item in items:
                await self._send_piece(work, writer.piece(item))
        except GoneError:
            raise
        except BaseException as error:  # noqa: BLE001 - as in _run_call()
            is_whole = False
            if last := writer.broken(describe_failure(f"request {work.call.id}", error), work.call.id):
                send_piece(self._channel, work.number, last)
        if is_whole and writer.end:
            send_piece(self._channel, work.number, writer.end)
        send_end(self._channel, work.number, is_broken=not is_whole)

    async def _send_piece(self, work: WorkItem, piece: bytes) -> None:
        # A cancelled call has no special case here: its task is cancelled at this await.
        while work.credit <= 0:
            await self._frames_read.wait()
        work.credit -= 1
        send_piece(self._channel, work.number, piece)

    async def _run_batch(self, batch: Batch) -> None:
        run = BatchRun(await self._gather(batch), self._codec, self._mark, self._declaration, self._finish)
        while run.next_group():
            try:
                results = list(
                    await self._codec.handler.call_batch(run.rows, run.contexts(lambda work: work.is_cancelled))
                )
            except BaseException as error:  # noqa: BLE001 - as in _run_call()
                run.fail(error)
            else:
                run.answer(results)

    async def _gather(self, batch: Batch) -> list[WorkItem]:
        """Take the calls of the next batch; wait for more only up to the function's `max_wait`."""
        calls = self._inbox.calls
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(batch.max_wait_seconds):
                while len(calls) < batch.max_size and batch.max_wait_seconds:
                    await self._frames_read.wait()
        return [calls.popleft() for _ in range(min(len(calls), batch.max_size))]
