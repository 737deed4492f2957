"""Asks a desk, whose methods block, in threads, and has work done beside everything else. It refuses to know what is asked."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pgpu.errors import PgpuError
from pgpu.functions.replica.worker_supervisor import log

_THREADS = 8
_T = TypeVar("_T")


class BackgroundCalls:
    """Of one event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "desk")
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_away = False
        """Whether the desk could not answer the last time."""

    async def asked(self, ask: Callable[..., _T], *words: Any) -> _T | None:
        """Ask; None if it cannot answer, which is said once until it does."""
        try:
            answer = await self.in_thread(ask, *words)
        except PgpuError as error:
            if not self.is_away:
                log(f"the server does not answer as it should: {error}")
            self.is_away = True
            return None
        self.is_away = False
        return answer

    async def in_thread(self, ask: Callable[..., _T], *words: Any) -> _T:
        """Ask, and raise what it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, functools.partial(ask, *words))

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Have something done; whoever asks does not wait."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def close(self) -> None:
        """Leave what is not done undone."""
        for task in self._tasks:
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log(f"a bug of the gateway's: {error!r}")
