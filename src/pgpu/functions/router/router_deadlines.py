"""Deadlines at the gateway: one timer for a hall, which goes off at the first deadline known.

A replica keeps the deadlines of what it has, and says more of why; the gateway answers for it only where it is silent. It
refuses to end a replica.
"""

import asyncio
import math
import time

from pgpu.functions.router.function_router import FunctionRouter
from pgpu.functions.router.routed_request import RoutedRequest

_GRACE_SECONDS = 1.0
"""What a replica may be late with its own answer."""


class RouterDeadlines:
    """Watches the requests of one hall."""

    def __init__(self, hall: FunctionRouter) -> None:
        self._hall = hall
        self._loop = asyncio.get_running_loop()
        self._next_seconds = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, errand: RoutedRequest) -> None:
        """See to it that somebody looks when this one is late."""
        if errand.deadline_seconds < self._next_seconds:
            self._schedule(errand.deadline_seconds)

    def _schedule(self, at_seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_seconds = at_seconds
        self._timer = self._loop.call_later(max(0.0, at_seconds - time.monotonic()), self._look)

    def _look(self) -> None:
        now, self._timer, self._next_seconds = time.monotonic(), None, math.inf
        dues = [self._due(errand, now) for errand in [*self._hall.errands()]]
        if dues and (first := min(dues)) < math.inf:
            self._schedule(first)

    def _due(self, errand: RoutedRequest, now_seconds: float) -> float:
        """Answer one request if it is late, or say when to look at it again."""
        due = errand.deadline_seconds + (_GRACE_SECONDS if errand.link is not None else 0.0)
        if now_seconds < due:
            return due
        self._hall.expire(errand)
        return math.inf
