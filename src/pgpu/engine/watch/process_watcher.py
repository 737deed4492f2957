"""The processes whose end somebody wants to hear of, each watched through a descriptor that outlives the reuse of a PID."""

import os
from collections.abc import Callable

from pgpu.engine.process.event_loop import READABLE, EventLoop, Timer
from pgpu.host.process_identity import open_pidfd
from pgpu.model import ProcessHolder


class ProcessWatcher:
    """The processes that one loop watches now."""

    def __init__(self, loop: EventLoop, on_death: Callable[[], None]) -> None:
        self._loop = loop
        self._on_death = on_death
        self._descriptors: dict[ProcessHolder, int] = {}
        self._dead: set[ProcessHolder] = set()
        self._news: Timer | None = None

    def watch(self, holders: set[ProcessHolder]) -> None:
        """Watch exactly these; a death that came before is told too, once."""
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
                self._tell_soon()
        if not holders and self._news is not None:
            self._news.cancel()

    def _tell_soon(self) -> None:
        """Not at once: whoever is told comes here again."""
        if self._news is None or self._news.call is None:
            self._news = self._loop.call_later(0.0, self._tell)

    def _tell(self) -> None:
        self._news = None
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
