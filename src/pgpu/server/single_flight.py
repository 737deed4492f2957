"""One answer for all who ask the same at the same time, and never one that is older than the question.

Like a bus: who comes while it is on its way takes the next one, together with everybody else who waits. So however many
ask, at most two computations of one thing are on, and each sees everything that was done before it was asked for.
"""

import asyncio
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from starlette.concurrency import run_in_threadpool

T = TypeVar("T")


class SharedComputation(Generic[T]):
    """One computation as threads share it: by turns, and who waited for a turn takes what began meanwhile."""

    def __init__(self, compute: Callable[[], T]) -> None:
        """Compute nothing yet.

        Args:
            compute: May block. Whatever it raises, only the one for whom it ran gets.
        """
        self._compute = compute
        self._turn = threading.Lock()
        self._guard = threading.Lock()
        self.asked = 0
        """So many have asked."""

        self._newest: tuple[int, T] | None = None

    def answer(self) -> T:
        """Return what a computation gives that began after this call."""
        with self._guard:
            self.asked += 1
            place = self.asked
        with self._turn:
            # It was begun for everybody who had asked by then.
            if self._newest is None or self._newest[0] < place:
                asked_before = self.asked
                self._newest = asked_before, self._compute()
            return self._newest[1]


class SingleFlight:
    """What is being computed, by key; used from one event loop."""

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._next: dict[Hashable, asyncio.Task[Any]] = {}

    async def answer(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """Return what a computation gives that began after this call, in a thread.

        Args:
            key: What is asked; the same key must mean the same computation.
            compute: May block. Whatever it raises, all who share it get.
        """
        running = self._running.get(key)
        if running is None or running.done():
            self._running[key] = asyncio.create_task(run_in_threadpool(compute))
            return await self._shared(key, self._running[key])
        if key not in self._next:
            self._next[key] = asyncio.create_task(self._after(key, running, compute))
        return await self._shared(key, self._next[key])

    async def _after(self, key: Hashable, running: "asyncio.Task[Any]", compute: Callable[[], Any]) -> Any:
        await asyncio.wait({running})
        self._running[key] = self._next.pop(key)
        return await run_in_threadpool(compute)

    async def _shared(self, key: Hashable, task: "asyncio.Task[Any]") -> Any:
        """Wait without taking the others along if this caller goes."""
        try:
            return await asyncio.shield(task)
        finally:
            if task.done() and self._running.get(key) is task:
                del self._running[key]
