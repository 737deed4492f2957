"""Single-flight: concurrent requests for the same thing share one computation, which never began before the request.

A request that arrives while a computation runs waits for the next one, with all others that arrive meanwhile. So at most
two computations of one key exist at a time. `SharedComputation` of the services does the same for threads.
"""

import asyncio
from collections.abc import Callable, Hashable
from typing import Any

from starlette.concurrency import run_in_threadpool


class SingleFlight:
    """The running and the next computation of each key; used from one event loop."""

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._next: dict[Hashable, asyncio.Task[Any]] = {}

    async def answer(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """Return the result of a computation that began after this call, in a thread.

        Args:
            key: Identifies the computation.
            compute: May block. Its exception is raised in all requests that share it.
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
        try:
            # Without the shield, the cancellation of one request would cancel the task for the others.
            return await asyncio.shield(task)
        finally:
            if task.done() and self._running.get(key) is task:
                del self._running[key]
