"""Asks an idle worker now and then whether it is well: a GPU can fall off the bus while nobody calls.

It refuses to ask a busy one: calls are a better question, and deadlines end one that hangs.
"""

import asyncio

from pgpu.functions.calls.frames import frame
from pgpu.functions.calls.messages import Ask, Kind
from pgpu.functions.front.desk import Desk

_ASK = frame(Kind.ASK, 0, Ask("health"))


class Wellness:
    """Watches the worker of one desk."""

    def __init__(self, desk: Desk, interval_seconds: float) -> None:
        """Begin to ask; what the worker answers, the keeper hears."""
        self._desk, self._interval_seconds = desk, interval_seconds
        self._loop = asyncio.get_running_loop()
        self._loop.call_later(self._interval_seconds, self._ask)

    def _ask(self) -> None:
        if not self._desk.requests:
            self._desk.tell(_ASK)
        self._loop.call_later(self._interval_seconds, self._ask)
