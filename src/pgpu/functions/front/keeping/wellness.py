"""Asks an idle worker now and then whether it is well: a GPU can fall off the bus while nobody calls.

One that owes an answer for longer than a call may take hangs, and is replaced. It refuses to ask a busy one: calls are
a better question, and deadlines end one that hangs in them.
"""

import asyncio
import time

from pgpu.functions.calls.frames import frame
from pgpu.functions.calls.messages import Ask, Kind
from pgpu.functions.front.desk import Desk
from pgpu.functions.front.keeping.keeper import Keeper
from pgpu.functions.front.states import State

_ASK = frame(Kind.ASK, 0, Ask("health"))


class Wellness:
    """Watches the worker of one desk."""

    def __init__(self, desk: Desk, keeper: Keeper, interval_seconds: float) -> None:
        """Begin to ask; what the worker answers, the keeper hears."""
        self._desk, self._keeper, self._interval_seconds = desk, keeper, interval_seconds
        self._loop = asyncio.get_running_loop()
        self._loop.call_later(self._interval_seconds, self._ask)

    def _ask(self) -> None:
        keeper, now = self._keeper, time.monotonic()
        if keeper.state is State.HOT and not self._desk.requests:
            if keeper.asked_seconds is None:
                keeper.asked_seconds = now
                self._desk.tell(_ASK)
            elif now - keeper.asked_seconds > keeper.declaration.timeout_seconds:
                keeper.end_worker("health() does not answer")
        self._loop.call_later(self._interval_seconds, self._ask)
