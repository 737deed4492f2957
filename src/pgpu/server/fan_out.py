"""One reader or one computation for many concurrent requests: the broadcast of events, and single-flight.

The events of the ledger have one reader task in this process, however many subscribers there are. Other processes change the
ledger as well: the reader sleeps until one of them has committed, and ends then if no subscriber is left. Both classes are used
from one event loop.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool

from pgpu.errors import NodeError
from pgpu.ledger import ChangeWatch, Ledger
from pgpu.model import Event

_PAUSE_SECONDS = 0.05
"""Between two reads of a ledger that changes all the time."""

_MOST_AT_ONCE = 500


class EventBroadcast:
    """The events of one ledger as they are written; used from one event loop."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._subscribers: set[Subscriber] = set()
        self._reader: asyncio.Task[None] | None = None
        self._is_closed = False

    def close(self) -> None:
        """End all iterations over `events`."""
        self._is_closed = True
        for subscriber in self._subscribers:
            subscriber.changed.set()

    async def newest(self) -> int:
        """Return the number of the newest event."""
        return await run_in_threadpool(self._ledger.events.newest)

    async def events(self, after: int, pause_seconds: float = 15.0) -> AsyncIterator[Sequence[Event]]:
        """Yield new events in batches; an empty batch after `pause_seconds` without any.

        Args:
            after: Begin behind the event of this number.
            pause_seconds: Interval of empty batches.
        """
        with self.subscription() as subscriber:
            seen, is_due = after, True
            while not self._is_closed:
                # Cleared before the read: an event written between the two sets it again.
                subscriber.changed.clear()
                found = await run_in_threadpool(self._ledger.events.after, seen, _MOST_AT_ONCE) if is_due else []
                if found:
                    seen = found[-1].sequence
                    yield found
                else:
                    is_due = await subscriber.wait(pause_seconds)
                    if not is_due:
                        yield ()

    async def until_changed(self, job_id: str, most_seconds: float) -> None:
        """Wait for an event of a job, or for a timeout; an event before the call may be missed."""
        with self.subscription(job_id) as subscriber:
            await subscriber.wait(most_seconds)

    @contextlib.contextmanager
    def subscription(self, job_id: str | None = None) -> "Iterator[Subscriber]":
        """Set the flag of the subscriber after each commit to the ledger, or only after those with an event of one job."""
        subscriber = Subscriber(job_id)
        self._subscribers.add(subscriber)
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        try:
            yield subscriber
        finally:
            self._subscribers.discard(subscriber)  # the reader ends at the next commit if there is no other one then

    async def _read(self) -> None:
        changed = asyncio.Event()
        try:
            with ChangeWatch(self._ledger.path) as watch, _readable(watch, changed):
                seen: int | None = None
                while self._subscribers:
                    changed.clear()
                    with contextlib.suppress(
                        NodeError
                    ):  # Subscribers of `events` read the ledger themselves and get it.
                        seen = await self._wake_subscribers(seen)
                    await asyncio.sleep(_PAUSE_SECONDS)
                    if watch.descriptor is not None:
                        await changed.wait()
        finally:
            # No await since the last check for subscribers, so none is left without a reader: a later one starts another.
            self._reader = None

    async def _wake_subscribers(self, seen: int | None) -> int:
        """Set the flags of those for which something has changed, and return the number of the newest event."""
        changed: set[str | None] = {None}
        if seen is None:
            # The first read has no starting point: it wakes every subscriber, which then reads for itself.
            seen = await run_in_threadpool(self._ledger.events.newest)
            changed |= {subscriber.job_id for subscriber in self._subscribers}
        else:
            while found := await run_in_threadpool(self._ledger.events.after, seen, _MOST_AT_ONCE):
                changed |= {event.job_id for event in found}
                seen = found[-1].sequence
        for subscriber in self._subscribers:
            if subscriber.job_id in changed:
                subscriber.changed.set()
        return seen


@contextlib.contextmanager
def _readable(watch: ChangeWatch, changed: asyncio.Event) -> Iterator[None]:
    """Set an event after each commit that a watch reports."""

    def note() -> None:
        watch.clear()
        changed.set()

    watch.clear()
    if watch.descriptor is None:
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_reader(watch.descriptor, note)
    try:
        yield
    finally:
        loop.remove_reader(watch.descriptor)


class Subscriber:
    """A flag for the events of one job, or of all."""

    def __init__(self, job_id: str | None) -> None:
        self.job_id = job_id
        self.changed = asyncio.Event()

    async def wait(self, most_seconds: float) -> bool:
        """Wait for the flag; False on timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_seconds):
                await self.changed.wait()
            return True
        return False


class SingleFlight:
    """Single-flight: concurrent requests for the same thing share one computation, which never began before the request.

    A request that arrives while a computation runs waits for the next one, with all others that arrive meanwhile. So at most
    two computations of one key exist at a time. `SharedComputation` of the services does the same for threads.
    """

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
            return await self._await_shared(key, self._running[key])
        if key not in self._next:
            self._next[key] = asyncio.create_task(self._after(key, running, compute))
        return await self._await_shared(key, self._next[key])

    async def _after(self, key: Hashable, running: "asyncio.Task[Any]", compute: Callable[[], Any]) -> Any:
        await asyncio.wait({running})
        self._running[key] = self._next.pop(key)
        return await run_in_threadpool(compute)

    async def _await_shared(self, key: Hashable, task: "asyncio.Task[Any]") -> Any:
        try:
            # Without the shield, the cancellation of one request would cancel the task for the others.
            return await asyncio.shield(task)
        finally:
            if task.done() and self._running.get(key) is task:
                del self._running[key]
