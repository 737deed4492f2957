"""The heartbeat of an agent's main loop, by which its guard finds an agent that is stopped or blocked and replaces it.

The loop sets the time of the lock's file (native/monitor/heartbeat.h). No thread does: a main loop that is blocked must be found.
A round may take long, on a loaded machine or with thousands of jobs: the guard counts processor time of the main thread as a
beat. A file system without times, or a file of another user, leaves the agent without a heartbeat, and it is not watched.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress

from pgpu.engine.event_loop import EventLoop

BUSY_SECONDS = 1
"""Time between two beats while jobs wait or run; silence of 10 s ends the agent."""

IDLE_SECONDS = 5
"""The same without jobs: an idle agent wakes for little else."""

_PERIOD_UNIT = 1_000_000
_NANOSECONDS = 1_000_000_000


def beat(loop: EventLoop, lock: int, is_idle: Callable[[], bool]) -> None:
    """Beat now, and from a timer from now on.

    Args:
        loop: Of the agent's main thread.
        lock: Descriptor of the lock's file.
        is_idle: Whether no job waits or runs.
    """
    period_seconds = IDLE_SECONDS if is_idle() else BUSY_SECONDS
    at_ns = (period_seconds * _PERIOD_UNIT + int(time.monotonic()) % _PERIOD_UNIT) * _NANOSECONDS
    with suppress(OSError):
        os.utime(lock, ns=(at_ns, at_ns))
    loop.call_on_beat(lambda: beat(loop, lock, is_idle), period_seconds)
