"""The lane of an asynchronous handler: its calls are tasks of one event loop.

A cancelled call's task is cancelled. It refuses to run more of them at a time than the function's concurrency, which
is one unless it says more: an asynchronous handler may still keep state between its awaits.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from pgpu.functions.api import Batch, Declaration
from pgpu.functions.ipc.blocking_channel import BlockingChannel, GoneError
from pgpu.functions.ipc.coalescing_loop import before_sleep
from pgpu.functions.ipc.messages import Reply
from pgpu.functions.ipc.started_mark import StartedMark
from pgpu.functions.protocols import ParsedCall, StreamWriter
from pgpu.functions.worker.call_codec import CallCodec, describe_failure
from pgpu.functions.worker.executors.batch_executor import check_batch
from pgpu.functions.worker.executors.call_inbox import CallInbox, WorkItem
from pgpu.functions.worker.executors.reply_frames import STREAM_WINDOW, queue_reply, send_end, send_head, send_piece
from pgpu.functions.worker.executors.worker_commands import run_commands
from pgpu.functions.worker.shutdown import ShutdownSignal


class WakeSignal:
    """Wakes everybody who waits for what the front says."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        """Something was said."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self) -> None:
        """Wait for the next of it."""
        await self._event.wait()


class AsyncExecutor:
    """Serves the calls of one port as tasks."""

    def __init__(
        self,
        port: BlockingChannel,
        mark: StartedMark,
        answerer: CallCodec,
        leave: ShutdownSignal,
        declaration: Declaration,
    ) -> None:
        self._port, self._mark, self._answerer, self._leave = port, mark, answerer, leave
        self._concurrency, self._batch = declaration.concurrency, declaration.batch
        self._inbox = CallInbox(port, on_cancelled=self._cancel)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._news = WakeSignal()

    async def serve(self) -> None:
        """Serve until the front leaves or says so; what was begun is finished."""
        loop = asyncio.get_running_loop()
        self._leave.on_asked = partial(loop.call_soon_threadsafe, self._news.tell)
        loop.add_reader(self._port.fileno(), self._read)
        while not (self._leave.is_asked or self._port.is_ended):
            await self._news.wait()
        if not self._port.is_ended:
            await asyncio.gather(*self._running, return_exceptions=True)
            self._port.flush()
        loop.remove_reader(self._port.fileno())

    def _read(self) -> None:
        self._inbox.fill(is_waiting=False)
        if self._inbox.questions:
            run_commands(self._port, self._inbox, self._answerer.handler, self._leave)
        self._start()
        self._news.tell()

    def _cancel(self, work: WorkItem) -> None:
        if (task := self._tasks.get(work.number)) is not None:
            task.cancel()

    def _start(self) -> None:
        """Begin what may run now."""
        while self._inbox.calls and len(self._running) < self._concurrency:
            if self._batch is not None:
                task = asyncio.create_task(self._serve_batch(self._batch))
            else:
                work = self._inbox.calls.popleft()
                task = self._tasks[work.number] = asyncio.create_task(self._serve_work(work))
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._start()

    def _finish(self, work: WorkItem, reply: Reply | None, began_seconds: float) -> None:
        self._tasks.pop(work.number, None)
        del self._inbox.known[work.number]
        if reply is not None:
            queue_reply(self._port, work.number, reply, began_seconds)
            before_sleep(asyncio.get_running_loop(), self._flush)

    def _flush(self) -> None:
        if not self._port.is_ended:
            with contextlib.suppress(GoneError):  # the next read says so too
                self._port.flush()

    async def _serve_work(self, work: WorkItem) -> None:
        began = time.monotonic()
        asked = self._answerer.read(work)
        if isinstance(asked, Reply):
            self._finish(work, asked, began)
            return
        self._mark.begin(max(work.number, self._mark.last_begun))
        try:
            reply = await self._answer(work, asked)
        except GoneError:
            reply = None
        except BaseException as error:  # noqa: BLE001 - whatever the user's code raises, a cancellation too, ends its call alone
            reply = self._answerer.failures([work], error)[0]
        self._finish(work, reply, began)

    async def _answer(self, work: WorkItem, asked: ParsedCall) -> Reply | None:
        handler = self._answerer.handler
        result = handler.call(asked.values, self._answerer.context(work, asked, lambda: work.is_cancelled))
        if not handler.signature.is_stream:
            return self._answerer.reply(work, asked, await result)
        if asked.form.streaming is None:
            return self._answerer.reply(work, asked, [item async for item in result])
        async with contextlib.aclosing(result) as items:
            await self._stream(work, asked.form.streaming, items)
        return None

    async def _stream(self, work: WorkItem, streaming: StreamWriter, items: AsyncIterator[Any]) -> None:
        """Send it all; what is raised before the first piece goes through, as nothing was sent then."""
        began, work.credit = time.monotonic(), work.credit + STREAM_WINDOW
        first = [streaming.piece(item) for item in [await anext(items, self)] if item is not self]
        send_head(self._port, work.number, Reply(200, streaming.headers), began)
        is_whole = True
        try:
            for piece in first:
                await self._send_piece(work, piece)
            async for item in items:
                await self._send_piece(work, streaming.piece(item))
        except GoneError:
            raise
        except BaseException as error:  # noqa: BLE001 - as above
            is_whole = False
            if last := streaming.broken(describe_failure(f"request {work.call.id}", error), work.call.id):
                send_piece(self._port, work.number, last)
        if is_whole and streaming.end:
            send_piece(self._port, work.number, streaming.end)
        send_end(self._port, work.number, is_broken=not is_whole)

    async def _send_piece(self, work: WorkItem, piece: bytes) -> None:
        while work.credit <= 0:
            await self._news.wait()
        work.credit -= 1
        send_piece(self._port, work.number, piece)

    async def _serve_batch(self, batch: Batch) -> None:
        works = await self._gather(batch)
        began = time.monotonic()
        read = [(work, self._answerer.read(work)) for work in works]
        good = [(work, asked) for work, asked in read if isinstance(asked, ParsedCall)]
        for work, refused in read:
            if isinstance(refused, Reply):
                self._finish(work, refused, began)
        if good:
            self._mark.begin(max(works[-1].number, self._mark.last_begun))
            for (work, _), reply in zip(good, await self._answer_batch(good), strict=True):
                self._finish(work, reply, began)

    async def _gather(self, batch: Batch) -> list[WorkItem]:
        """Take what has come, up to a batch; wait for more only where the function says so."""
        calls = self._inbox.calls
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(batch.max_wait_seconds):
                while len(calls) < batch.max_size and batch.max_wait_seconds:
                    await self._news.wait()
        return [calls.popleft() for _ in range(min(len(calls), batch.max_size))]

    async def _answer_batch(self, good: Sequence[tuple[WorkItem, ParsedCall]]) -> list[Reply]:
        answerer = self._answerer
        try:
            contexts = [answerer.context(work, asked, partial(_is_cancelled, work)) for work, asked in good]
            results = list(await answerer.handler.call_batch([asked.values for _, asked in good], contexts))
            check_batch(len(results), len(good))
            return [answerer.reply(work, asked, result) for (work, asked), result in zip(good, results, strict=True)]
        except BaseException as error:  # noqa: BLE001 - as above
            return answerer.failures([work for work, _ in good], error)


def _is_cancelled(work: WorkItem) -> bool:
    return work.is_cancelled
