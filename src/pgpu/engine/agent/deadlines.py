"""Deadlines of waits on CLOCK_BOOTTIME, which no program sets and which includes the time that the machine sleeps.

The ledger's deadlines are wall time; each is translated once, when it is first read.
"""

import math
import time
from collections.abc import Mapping


def now_seconds() -> float:
    """Return the time since the machine was started, its sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Deadlines:
    """The deadlines of all jobs that have one."""

    def __init__(self) -> None:
        self._at_seconds: dict[str, float] = {}

    def follow(self, wall_deadlines_seconds: Mapping[str, float]) -> None:
        """Keep those of exactly these jobs; one that was there before keeps its time."""
        now, wall_now = now_seconds(), time.time()
        self._at_seconds = {
            job_id: self._at_seconds.get(job_id, now + deadline - wall_now)
            for job_id, deadline in wall_deadlines_seconds.items()
        }

    def due(self) -> set[str]:
        """Return the jobs with an expired deadline."""
        now = now_seconds()
        return {job_id for job_id, at_seconds in self._at_seconds.items() if at_seconds <= now}

    def next_seconds(self) -> float:
        """Return how long it is to the next one; infinity if there is none."""
        return max(0.0, min(self._at_seconds.values(), default=math.inf) - now_seconds())
