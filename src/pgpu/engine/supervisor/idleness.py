"""Reports a job that has done nothing on its GPUs for longer than the operator allows, such as a forgotten notebook.

It uses the driver's samples of each process's utilisation, in which very short work rounds to 0. Without such samples a job
with a process on the GPU counts as busy. The caller stops the job, or does not.
"""

import time
from collections.abc import Callable

from pgpu.engine.engine import Engine
from pgpu.model import Job
from pgpu.runtimes import RunningJob
from pgpu.structs import Struct
from pgpu.units import format_duration

LOOK_SECONDS = 5.0
"""Interval between two queries of the driver, which keeps samples for longer than that."""


class Idleness(Struct):
    """The idle time of one running job, from one query to the next."""

    engine: Engine
    timeout_seconds: float | None
    """Longest allowed idle time; None: no limit."""

    clock: Callable[[], float] = time.monotonic
    _busy_at_seconds: float = 0.0
    _looked_at_seconds: float = 0.0
    _asked_at_seconds: float = 0.0
    """Of the last query, in the driver's time: seconds since the epoch."""

    def __post_init__(self) -> None:
        self._busy_at_seconds = self._looked_at_seconds = self.clock()
        self._asked_at_seconds = time.time()

    def look(self, job: Job, running: RunningJob) -> str | None:
        """Return a report in one line if the job was idle for too long; else None.

        Raises:
            NodeError: A GPU cannot be read.
        """
        now_seconds = self.clock()
        if self.timeout_seconds is None or job.lease is None or job.request.is_without_gpu:
            return None
        if now_seconds - self._looked_at_seconds < LOOK_SECONDS:
            return None
        self._looked_at_seconds = now_seconds
        if self._is_busy([part.gpu_uuid for part in job.lease.slices], running):
            self._busy_at_seconds = now_seconds
        idle_seconds = now_seconds - self._busy_at_seconds
        if idle_seconds < self.timeout_seconds:
            return None
        return f"it has done nothing on its GPUs for {format_duration(idle_seconds)}"

    def _is_busy(self, gpu_uuids: list[str], running: RunningJob) -> bool:
        since_seconds, self._asked_at_seconds = self._asked_at_seconds, time.time()
        for uuid in gpu_uuids:
            pids = self.engine.gpus.busy_pids(uuid, since_seconds)
            if pids is None:  # This driver has no samples by process.
                pids = frozenset(process.pid for process in self.engine.gpus.processes(uuid))
            if any(running.owns(pid) for pid in pids):
                return True
        return False
