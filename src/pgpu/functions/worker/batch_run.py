"""One batch of calls: which of them the handler gets together, and what happens where it raises. For every batching executor.

Calls with arrays of other shapes or dtypes form groups of their own, since a handler stacks what it gets. Where the handler raises
for a group, the halves of the group run again, until only those calls fail that fail alone. So a call of a group that raised is
executed up to 1 + log2(size) times, rounded up; a declaration of `retry_batches = false` executes each once, and all of the group fail.
"""

import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from pgpu.functions.api import Context, Declaration
from pgpu.functions.handler import Values
from pgpu.functions.ipc.call_messages import Reply
from pgpu.functions.ipc.memory_files import StartedMark
from pgpu.functions.protocols import ParsedCall
from pgpu.functions.worker.call_codec import CallCodec, WorkItem, log

Group = list[tuple[WorkItem, ParsedCall]]


class BatchRun:
    """The groups of one batch. After `next_group()` the executor calls the handler and reports by `answer()` or `fail()`."""

    def __init__(
        self,
        works: Sequence[WorkItem],
        codec: CallCodec,
        mark: StartedMark,
        declaration: Declaration,
        finish: Callable[[WorkItem, Reply | None, float], object],
    ) -> None:
        """Decode the calls; those that are refused are finished.

        Args:
            works: The calls.
            codec: Of the handler.
            mark: Records which calls have begun.
            declaration: Says whether groups are split.
            finish: Called once for each call, with its reply, None if the replica took it back, and when it began.
        """
        self._codec, self._mark, self._finish = codec, mark, finish
        self._is_splitting = declaration.retry_batches
        self._group: Group = []
        self._began_seconds = time.monotonic()
        groups: dict[Hashable, Group] = {}
        for work in works:
            parsed = codec.read(work)
            if isinstance(parsed, ParsedCall):
                groups.setdefault(shapes_of(parsed.values), []).append((work, parsed))
            else:
                finish(work, parsed, self._began_seconds)
        self._groups = deque(groups.values())

    def next_group(self) -> bool:
        """Begin the next group; False: all calls are finished."""
        while self._groups:
            self._began_seconds, self._group = time.monotonic(), []
            for work, parsed in self._groups.popleft():
                if work.is_cancelled:
                    self._finish(work, self._codec.cancelled_reply(work), self._began_seconds)
                elif self._mark.begin(work.number):
                    self._group.append((work, parsed))
                else:
                    self._finish(work, None, self._began_seconds)
            if self._group:
                return True
        return False

    @property
    def rows(self) -> list[Values]:
        """The arguments of the group's calls."""
        return [parsed.values for _, parsed in self._group]

    def contexts(self, is_cancelled: Callable[[WorkItem], bool]) -> list[Context]:
        return [self._codec.context(work, parsed, partial(is_cancelled, work)) for work, parsed in self._group]

    def answer(self, results: Sequence[Any]) -> None:
        """Finish the group's calls with the handler's results."""
        try:
            replies = self._codec.batch_replies(self._group, results)
        except BaseException as error:  # noqa: BLE001 - any exception of the user's code ends only this group
            self.fail(error)
        else:
            self._finish_all(replies)

    def fail(self, error: BaseException) -> None:
        """Put the halves of the group in front of the others, or finish its calls with an exception of the handler."""
        middle = len(self._group) // 2
        if middle and self._is_splitting:
            log(f"a batch of {len(self._group)} raised {type(error).__name__}: its halves run again")
            self._groups.extendleft((self._group[middle:], self._group[:middle]))
        else:
            self._finish_all(self._codec.failure_replies([work for work, _ in self._group], error))

    def _finish_all(self, replies: Sequence[Reply]) -> None:
        for (work, _), reply in zip(self._group, replies, strict=True):
            self._finish(work, reply, self._began_seconds)


def shapes_of(values: Values) -> Hashable:
    """Return the dtype and shape of each array among a call's arguments; equal for calls that can be stacked."""
    arrays = ((getattr(value, "dtype", None), getattr(value, "shape", None)) for value in values)
    return tuple(None if dtype is None else (str(dtype), shape) for dtype, shape in arrays)
