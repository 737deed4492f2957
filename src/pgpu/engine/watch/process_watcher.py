"""Watches processes for their end through pidfds, which stay valid when a PID is reused."""

import os
from collections.abc import Callable

from pgpu.engine.process.event_loop import READABLE, EventLoop, Timer
from pgpu.host.process_identity import open_pidfd
from pgpu.model import ProcessHolder


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
        self._dead &= holders
        for holder in holders - set(self._descriptors) - self._dead:
            descriptor = open_pidfd(holder)
            if descriptor is not None:
                self._descriptors[holder] = descriptor
                self._loop.watch(descriptor, READABLE, self._died(holder))
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

    def _died(self, holder: ProcessHolder) -> Callable[[int], None]:
        def call(_events: int) -> None:
            self._drop(holder)
            self._dead.add(holder)
            self._on_death()

        return call

    def _drop(self, holder: ProcessHolder) -> None:
        descriptor = self._descriptors.pop(holder)
        self._loop.forget(descriptor)
        os.close(descriptor)
