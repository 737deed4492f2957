"""The lane of a handler that takes several requests at once.

A batch starts as soon as the lane is free, with what has come meanwhile; only a function that says so waits for more. It
refuses to try the requests of a failed batch one by one: the handler may have begun something with each.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from pgpu.functions.api import Batch
from pgpu.functions.ipc.blocking_channel import BlockingChannel
from pgpu.functions.ipc.messages import Reply
from pgpu.functions.ipc.started_mark import StartedMark
from pgpu.functions.protocols import ParsedCall
from pgpu.functions.worker.call_codec import CallCodec
from pgpu.functions.worker.executors.call_inbox import WorkItem
from pgpu.functions.worker.executors.single_executor import SingleExecutor
from pgpu.functions.worker.shutdown import ShutdownSignal


class BatchExecutor(SingleExecutor):
    """Serves the calls of one port in batches."""

    def __init__(
        self, port: BlockingChannel, mark: StartedMark, answerer: CallCodec, leave: ShutdownSignal, batch: Batch
    ) -> None:
        super().__init__(port, mark, answerer, leave)
        self._batch = batch

    def _turn(self) -> Callable[[], None]:
        return self._serve_batch

    def _serve_batch(self) -> None:
        works = self._gather()
        began = time.monotonic()
        read = [(work, self._answerer.read(work)) for work in works]
        good = [(work, asked) for work, asked in read if isinstance(asked, ParsedCall)]
        for work, asked in read:
            if isinstance(asked, Reply):
                self._finish(work, asked, began)
        if good:
            self._mark.begin(works[-1].number)
            for (work, _), reply in zip(good, self._answer_batch(good), strict=True):
                self._finish(work, reply, began)
        self._port.flush()
        self._inbox.fill(is_waiting=False)

    def _gather(self) -> list[WorkItem]:
        """Take what has come, up to a batch; wait for more only where the function says so."""
        until = time.monotonic() + self._batch.max_wait_seconds
        calls = self._inbox.calls
        while len(calls) < self._batch.max_size and not self._port.is_ended:
            if not self._port.is_readable(max(0.0, until - time.monotonic())):
                break
            self._inbox.fill(is_waiting=False)
        return [calls.popleft() for _ in range(min(len(calls), self._batch.max_size))]

    def _answer_batch(self, good: Sequence[tuple[WorkItem, ParsedCall]]) -> list[Reply]:
        answerer = self._answerer
        try:
            contexts = [self._context(work, asked) for work, asked in good]
            results: list[Any] = list(answerer.handler.call_batch([asked.values for _, asked in good], contexts))
            check_batch(len(results), len(good))
            return [answerer.reply(work, asked, result) for (work, asked), result in zip(good, results, strict=True)]
        except BaseException as error:  # noqa: BLE001 - whatever the user's code raises ends its calls alone
            return answerer.failures([work for work, _ in good], error)


def check_batch(results: int, requests: int) -> None:
    """Refuse results that cannot be told apart. Raises ValueError."""
    if results != requests:
        raise ValueError(f"the handler answered {requests} requests with {results} results")
