"""Asks an idle worker now and then whether it is well: a GPU can fall off the bus while nobody calls.

One that owes an answer for longer than a call may take hangs, and is replaced. It refuses to ask a busy one: calls are
a better question, and deadlines end one that hangs in them.
"""

import asyncio
import time

from pgpu.functions.ipc.call_frames import encode_frame
from pgpu.functions.ipc.messages import Command, FrameKind
from pgpu.functions.replica.request_queue import RequestQueue
from pgpu.functions.replica.serving_state import ServingState
from pgpu.functions.replica.worker_supervisor import WorkerSupervisor

_ASK = encode_frame(FrameKind.COMMAND, 0, Command("health"))


class HealthProbe:
    """Watches the worker of one desk."""

    def __init__(self, desk: RequestQueue, keeper: WorkerSupervisor, interval_seconds: float) -> None:
        """Begin to ask; what the worker answers, the keeper hears."""
        self._desk, self._keeper, self._interval_seconds = desk, keeper, interval_seconds
        self._loop = asyncio.get_running_loop()
        self._loop.call_later(self._interval_seconds, self._ask)

    def _ask(self) -> None:
        keeper, now = self._keeper, time.monotonic()
        if keeper.state is ServingState.HOT and not self._desk.requests:
            if keeper.asked_seconds is None:
                keeper.asked_seconds = now
                self._desk.tell(_ASK)
            elif now - keeper.asked_seconds > keeper.declaration.timeout_seconds:
                keeper.end_worker("health() does not answer")
        self._loop.call_later(self._interval_seconds, self._ask)
