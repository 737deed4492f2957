"""Deadlines: a request that is late is answered 504, and a worker that goes on long after is ended.

One timer serves all requests: it goes off at the first deadline known, mostly to find that request long answered. A
timer for each would cost every request what only late ones need. It refuses to interrupt a handler before its hard
deadline: the lane stays closed until the worker is free.
"""

import asyncio
import math
import time

from pgpu.functions.protocols import Refusal
from pgpu.functions.replica.request_queue import RequestQueue
from pgpu.functions.replica.serving_state import ServingState
from pgpu.functions.replica.worker_supervisor import STARTING_TIMEOUT, WorkerSupervisor
from pgpu.functions.requests.pending_request import PendingRequest

LONGEST_GRACE_SECONDS = 10.0
"""After the function's own timeout a call may go on for as long again, but no longer than this."""

_LATE = Refusal(504, "deadline", "the answer did not come in time")


class Deadlines:
    """Watches the requests of one desk."""

    def __init__(self, desk: RequestQueue, keeper: WorkerSupervisor) -> None:
        self._desk, self._keeper = desk, keeper
        self._loop = asyncio.get_running_loop()
        self._next_seconds = math.inf
        self._timer: asyncio.TimerHandle | None = None
        desk.on_admitted = self.watch

    def watch(self, ticket: PendingRequest) -> None:
        """See to it that somebody looks when this one is late."""
        if ticket.deadline_seconds < self._next_seconds:
            self._schedule(ticket.deadline_seconds)

    def _schedule(self, at_seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_seconds = at_seconds
        self._timer = self._loop.call_later(max(0.0, at_seconds - time.monotonic()), self._look)

    def _look(self) -> None:
        now, self._timer, self._next_seconds = time.monotonic(), None, math.inf
        dues = [self._due(ticket, now) for ticket in self._desk.tickets()]
        if dues and (first := min(dues)) < math.inf:
            self._schedule(first)

    def _due(self, ticket: PendingRequest, now_seconds: float) -> float:
        """Do what is due for one request, and say when to look at it again."""
        if now_seconds < ticket.deadline_seconds:
            return ticket.deadline_seconds
        if ticket.asker is not None:
            self._desk.expire(ticket, STARTING_TIMEOUT if self._keeper.state is ServingState.STARTING else _LATE)
        if not ticket.number:
            return math.inf
        hard = self._desk.latest_begin_seconds(ticket) + self._longest_seconds()
        if now_seconds < hard:
            return hard
        self._keeper.end_worker("a call went on long after its deadline")
        return math.inf

    def _longest_seconds(self) -> float:
        """How long the worker may run a call: as the function says, for a caller in a hurry must end nobody's worker."""
        declared_seconds = self._keeper.declaration.timeout_seconds
        return declared_seconds + min(declared_seconds, LONGEST_GRACE_SECONDS)
