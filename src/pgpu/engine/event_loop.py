"""An event loop over descriptors, timers and the ends of processes; agents and the supervision of their jobs run in its callbacks."""

import heapq
import itertools
import math
import os
import selectors
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from pgpu.host.process_identity import open_pidfd
from pgpu.host.thread_turns import pause
from pgpu.model import ProcessHolder

READABLE = selectors.EVENT_READ
WRITABLE = selectors.EVENT_WRITE

_LONGEST_WAIT_SECONDS = 86_400.0
"""A timer may be due in months, and `epoll_wait` takes 25 days at most."""

CALM_SECONDS = 2.0
"""See `EventLoop.calm_until`. Longer than the period of what is done each second: a thread that has that to do is not given up."""

Ready = Sequence[tuple[selectors.SelectorKey, int]]
"""Descriptors and what happened to them."""


class Timer:
    """A callback that is due at a time, unless it is cancelled."""

    def __init__(self, due_seconds: float, call: Callable[[], None]) -> None:
        self.due_seconds = due_seconds
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Drop the callback."""
        self.call = None


class EventLoop:
    """Waits in `select`, and calls what is ready or due."""

    def __init__(
        self,
        now_seconds: Callable[[], float] = time.monotonic,
        selector: Callable[[], selectors.EpollSelector] = selectors.EpollSelector,
        calm_seconds: float = CALM_SECONDS,
    ) -> None:
        """Wait with `selector`, on the monotonic clock `now_seconds`; it is calm after `calm_seconds` without anything to do."""
        self.now_seconds = now_seconds
        self._selector = selector()
        self._calm_seconds = calm_seconds
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()
        self._made_at_seconds = now_seconds()

    def watch(self, descriptor: int, events: int, call: Callable[[int], None]) -> None:
        """Call with the events that happened, each time `descriptor` is ready; 0 events stop watching it."""
        is_watched = descriptor in self._selector.get_map()
        if is_watched and not events:
            self._selector.unregister(descriptor)
        elif is_watched:
            self._selector.modify(descriptor, events, call)
        elif events:
            self._selector.register(descriptor, events, call)

    def forget(self, descriptor: int) -> None:
        """Stop watching; does nothing for a descriptor that is not watched."""
        self.watch(descriptor, 0, lambda _: None)

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call once, after at least this many seconds."""
        timer = Timer(self.now_seconds() + seconds, call)
        # Timers cannot be compared: the count decides between equal times, in the order of the calls.
        heapq.heappush(self._timers, (timer.due_seconds, next(self._count), timer))
        return timer

    def call_on_beat(
        self,
        call: Callable[[], None],
        period_seconds: float = 1.0,
        is_light: Callable[[], bool] = lambda: True,  # noqa: ARG002 - for loops with a strike
    ) -> Timer:
        """Call once, at the next multiple of a period since this loop was made: periodic work shares its wake-ups.

        Args:
            call: Without arguments.
            period_seconds: As above.
            is_light: Whether `call` cannot block for long now; a loop of `beats` may make it in another thread then.
        """
        since_seconds = self.now_seconds() - self._made_at_seconds
        return self.call_later((math.floor(since_seconds / period_seconds) + 1) * period_seconds - since_seconds, call)

    def call_on_write(self, path: Path, call: Callable[[], None]) -> None:
        """Call soon after another process has written to a file; no effect but in loops of `beats`: periodic calls must find it, too."""

    def run_until(self, is_done: Callable[[], bool]) -> None:
        """Wait and call until `is_done()`, which is checked after each round of calls."""
        while not is_done():
            self._call_ready(self.timeout_seconds())
            self._call_due()

    def calm_until(self, is_done: Callable[[], bool]) -> Iterator["EventLoop"]:
        """Wait and call as `run_until` does, and yield this loop each time that nothing was ready or due for `calm_seconds`.

        The calling thread may end there: another one goes on with the iteration, at the latest when `fileno` is readable or
        `timeout_seconds` have passed.
        """
        while not is_done():
            began_seconds, timeout_seconds = self.now_seconds(), self.timeout_seconds()
            may_be_calm = timeout_seconds is None or timeout_seconds > self._calm_seconds
            is_calm = not self._call_ready(self._calm_seconds if may_be_calm else timeout_seconds) and may_be_calm
            if is_calm and self.now_seconds() - began_seconds >= self._calm_seconds:
                yield self
            self._call_due()

    def fileno(self) -> int:
        """Return a descriptor that polls readable while a watched one is ready."""
        return self._selector.fileno()

    def turn(self) -> None:
        """Call what is ready now, without waiting."""
        self._call_ready(0)
        self._call_due()

    def close(self) -> None:
        """Close the selector; watched descriptors stay open."""
        self._selector.close()

    def timeout_seconds(self) -> float | None:
        """Return how long it is to the next timer, at most a day; None if there is none."""
        # A cancelled timer stays in the heap until it is the first; finding it earlier would cost a search.
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return min(max(0.0, self._timers[0][0] - self.now_seconds()), _LONGEST_WAIT_SECONDS)

    def _call_ready(self, timeout_seconds: float | None) -> bool:
        """Call what is ready within a time; return whether anything was."""
        ready = self._wait(timeout_seconds)
        # A callback of the same round may have stopped watching a descriptor that is ready, or closed it.
        for seen, events in ready:
            key = self._selector.get_map().get(seen.fd)
            if key is not None and events & key.events:
                key.data(events & key.events)
        return bool(ready)

    def _wait(self, timeout_seconds: float | None) -> Ready:
        with pause():
            return self._selector.select(timeout_seconds)

    def _call_due(self) -> None:
        # A timer that is set meanwhile waits for the next round, after the descriptors that are ready by then.
        until = self.now_seconds(), next(self._count)
        while self._timers and self._timers[0][:2] <= until:
            call = heapq.heappop(self._timers)[2].call
            if call is not None:
                call()


class ProcessWatcher:
    """The processes that one event loop watches now."""

    def __init__(self, loop: EventLoop, on_death: Callable[[], None]) -> None:
        self._loop = loop
        self._on_death = on_death
        self._descriptors: dict[ProcessHolder, int] = {}
        self._dead: set[ProcessHolder] = set()
        self._pending: Timer | None = None

    def watch(self, holders: set[ProcessHolder]) -> None:
        """Watch exactly these; `on_death` is called once for each that ends or has ended already."""
        for holder in set(self._descriptors) - holders:
            self._drop(holder)
        # A caller passes a dead process until the ledger is updated; as long as it does, the end is reported once.
        self._dead &= holders
        for holder in holders - set(self._descriptors) - self._dead:
            # A pidfd becomes readable when its process ends, and never stands for another process with the same PID.
            descriptor = open_pidfd(holder)
            if descriptor is not None:
                self._descriptors[holder] = descriptor
                self._loop.watch(descriptor, READABLE, partial(self._on_end, holder))
            else:
                self._dead.add(holder)
                # By a timer, since `on_death` usually calls this method again.
                if self._pending is None or self._pending.call is None:
                    self._pending = self._loop.call_later(0.0, self._notify)
        if not holders and self._pending is not None:
            self._pending.cancel()

    def _notify(self) -> None:
        self._pending = None
        self._on_death()

    def _on_end(self, holder: ProcessHolder, _events: int) -> None:
        # A pidfd stays readable: it is unregistered first, or the loop would call this again.
        self._drop(holder)
        self._dead.add(holder)
        self._on_death()

    def _drop(self, holder: ProcessHolder) -> None:
        descriptor = self._descriptors.pop(holder)
        self._loop.forget(descriptor)
        os.close(descriptor)
