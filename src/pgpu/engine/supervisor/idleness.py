"""Tells when a job has done nothing on its GPUs for longer than the operator allows: a notebook left open over night.

What the driver samples of each process is what counts: who launches next to nothing rounds to nothing. Where the driver
does not tell, nobody is called idle. This module refuses to stop anybody.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pgpu.engine.engine import Engine
from pgpu.model import Job
from pgpu.runtimes import RunningJob
from pgpu.units import format_duration

LOOK_SECONDS = 5.0
"""How often the driver is asked; it keeps samples for longer."""


@dataclass
class Idleness:
    """What is remembered of one running job from look to look."""

    engine: Engine
    timeout_seconds: float | None
    """None never calls it idle."""

    clock: Callable[[], float] = time.monotonic
    _busy_at_seconds: float = field(init=False)
    _looked_at_seconds: float = field(init=False)
    _asked_at_seconds: float = field(init=False)
    """In the driver's own time, since the epoch."""

    def __post_init__(self) -> None:
        self._busy_at_seconds = self._looked_at_seconds = self.clock()
        self._asked_at_seconds = time.time()

    def look(self, job: Job, running: RunningJob) -> str | None:
        """Return what to tell once the job was idle for too long, in one line; else None.

        Raises:
            NodeError: A GPU cannot be read.
        """
        now_seconds = self.clock()
        if job.request.is_without_gpu:
            return None
        if self.timeout_seconds is None or job.lease is None or now_seconds - self._looked_at_seconds < LOOK_SECONDS:
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
        return any(self._is_busy_on(uuid, since_seconds, running) for uuid in gpu_uuids)

    def _is_busy_on(self, gpu_uuid: str, since_seconds: float, running: RunningJob) -> bool:
        """Where the driver does not tell who works, whoever is there counts as working."""
        pids = self.engine.gpus.busy_pids(gpu_uuid, since_seconds)
        if pids is None:
            pids = frozenset(process.pid for process in self.engine.gpus.processes(gpu_uuid))
        return any(running.owns(pid) for pid in pids)
