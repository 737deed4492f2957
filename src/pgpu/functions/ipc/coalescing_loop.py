"""An event loop that does what was put off just before it sleeps.

With `call_soon` the loop would turn once more, with a look at every socket, to do it: a fifth of what a small call
costs. It refuses to change anything else about asyncio's own loop.
"""

import asyncio
import selectors
from collections.abc import Callable
from typing import Any


class _Selector(selectors.DefaultSelector):
    """Runs what was put off before each look at the sockets."""

    def __init__(self) -> None:
        super().__init__()
        self.put_off: list[Callable[[], None]] = []

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        while self.put_off:
            due, self.put_off = self.put_off, []
            for act in due:
                act()
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(timeout)
        return ready


class CoalescingLoop(asyncio.SelectorEventLoop):
    """asyncio's loop, with a last moment before it sleeps."""

    def __init__(self) -> None:
        selector = _Selector()
        super().__init__(selector)
        self.pgpu_selector = selector


def before_sleep(loop: Any, act: Callable[[], None]) -> None:
    """Call something once, at the end of this turn of the loop; it must not raise.

    What it schedules with `call_soon` is done after the loop has slept: such an act writes, and schedules nothing.
    """
    if isinstance(loop, CoalescingLoop):
        loop.pgpu_selector.put_off.append(act)
    else:
        loop.call_soon(act)
