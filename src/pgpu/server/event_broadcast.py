"""News of the ledger for everybody in this process who waits for some: one reader, however many wait.

The ledger's changes are other processes' too, so somebody must look; this looks while anybody waits, and not else. It
refuses to know who may hear what.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence

from starlette.concurrency import run_in_threadpool

from pgpu.errors import NodeError
from pgpu.ledger import Ledger
from pgpu.model import Event

_PAUSE_SECONDS = 0.05
_MOST_AT_ONCE = 500


class EventBroadcast:
    """The events of one ledger as they come; used from one event loop."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._listeners: set[_Listener] = set()
        self._reader: asyncio.Task[None] | None = None
        self._is_closed = False

    def close(self) -> None:
        """End what `events` tells, for everybody."""
        self._is_closed = True
        for listener in self._listeners:
            listener.news.set()

    async def newest(self) -> int:
        """Return the number of the newest event: what comes after it is new."""
        return await run_in_threadpool(self._ledger.events.newest)

    async def events(self, after: int, pause_seconds: float = 15.0) -> AsyncIterator[Sequence[Event]]:
        """Yield what comes, in pieces; an empty piece where nothing came for so long.

        Args:
            after: Begin behind the event of this number.
            pause_seconds: How long nothing may come before that is said.
        """
        with self._listening() as listener:
            seen = after
            while not self._is_closed:
                listener.news.clear()
                found = await run_in_threadpool(self._ledger.events.after, seen, _MOST_AT_ONCE)
                if found:
                    seen = found[-1].sequence
                    yield found
                elif not await listener.heard(pause_seconds):
                    yield ()

    async def until_changed(self, job_id: str, most_seconds: float) -> None:
        """Wait until something happens to a job, or for so long; what happened before the call may be missed."""
        with self._listening(job_id) as listener:
            await listener.heard(most_seconds)

    @contextlib.contextmanager
    def _listening(self, job_id: str | None = None) -> Iterator["_Listener"]:
        listener = _Listener(job_id)
        self._listeners.add(listener)
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    async def _read(self) -> None:
        """Look for news until nobody waits for any."""
        seen: int | None = None
        try:
            while self._listeners:
                with contextlib.suppress(NodeError):  # Whoever asks for the events themselves is told.
                    seen = await self._look(seen)
                await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            self._reader = None

    async def _look(self, seen: int | None) -> int:
        newest = await run_in_threadpool(self._ledger.events.newest)
        if newest == seen:
            return newest
        found = [] if seen is None else await run_in_threadpool(self._ledger.events.after, seen, _MOST_AT_ONCE)
        changed = {event.job_id for event in found}
        for listener in self._listeners:
            if seen is None or listener.job_id is None or listener.job_id in changed:
                listener.news.set()
        return found[-1].sequence if found else newest


class _Listener:
    """One who waits."""

    def __init__(self, job_id: str | None) -> None:
        self.job_id = job_id
        self.news = asyncio.Event()

    async def heard(self, most_seconds: float) -> bool:
        """Wait for news; False if none came for so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_seconds):
                await self.news.wait()
            return True
        return False
