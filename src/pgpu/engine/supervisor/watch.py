"""Compares, once a second, what the driver says a job holds with what its slice allows.

The meter binds; this catches what passes it. It reports, and leaves it to the supervisor to stop a job.
"""

from pgpu.enforcement import SliceUse
from pgpu.engine.engine import Engine
from pgpu.engine.history.run_history import NOTHING, MemoryObservation
from pgpu.model import Job, Lease, Slice
from pgpu.runtimes import RunningJob
from pgpu.structs import Struct, field
from pgpu.units import MIB, format_memory

TOLERANCE = 1.05
"""A holder over its slice by more than this is reported: drivers count a little that no program asked for."""

_DRIFT_BYTES = MIB
"""Smaller differences between driver and meter are left alone."""


class Watch(Struct):
    """What is remembered of one running job from second to second."""

    engine: Engine
    observed: MemoryObservation = NOTHING
    """What its slices held until now."""

    used_bytes: int = 0
    """Most that one of its slices holds now."""

    violation: str | None = None
    """The first time that it held more than its slice, in one line."""

    _overhead_bytes: dict[str, int] = field(default_factory=dict)
    _last_drift_bytes: dict[str, int] = field(default_factory=dict)

    def look(self, job: Job, running: RunningJob) -> None:
        """Read drivers and meters once.

        Raises:
            PgpuError: One of them cannot be read.
        """
        if job.lease is None:
            return
        counted_before = self._counted(job.lease)
        told = {part.gpu_uuid: self._driver_bytes(part.gpu_uuid, running) for part in job.lease.slices}
        counted_after = self._counted(job.lease)
        self.used_bytes = max((use.used_bytes for use in counted_after.values()), default=0)
        for part in job.lease.slices:
            driver_bytes = told[part.gpu_uuid]
            if (use := counted_after.get(part.gpu_uuid)) is not None:
                self.observed = self.observed.with_more(use, part)
                before = counted_before.get(part.gpu_uuid, use)
                if driver_bytes is not None:
                    self._follow_drift(job, part, max(before.used_bytes, use.used_bytes), driver_bytes)
            if driver_bytes is not None and driver_bytes > part.memory_bytes * TOLERANCE and self.violation is None:
                self.violation = _violation(part, driver_bytes)

    def _counted(self, lease: Lease) -> dict[str, SliceUse]:
        """Read the meters. Done before and after the driver is asked: what came or went meanwhile is no drift."""
        return {use.gpu_uuid: use for use in self.engine.enforcer.use(lease)}

    def _driver_bytes(self, gpu_uuid: str, running: RunningJob) -> int | None:
        """None where the driver does not tell."""
        held = [process.used_bytes for process in self.engine.gpus.processes(gpu_uuid) if running.owns(process.pid)]
        return None if None in held else sum(amount for amount in held if amount is not None)

    def _follow_drift(self, job: Job, part: Slice, charged_bytes: int, driver_bytes: int) -> None:
        """Believe a difference that two readings in a row show: one alone may be an allocation under way.

        Where nobody holds anything nothing can be under way: the next process of the job starts with its whole slice.
        """
        told = self._overhead_bytes.get(part.gpu_uuid, 0)
        drift_bytes = driver_bytes - (
            charged_bytes or told
        )  # a slice of which nothing is used shows no overhead either
        before = self._last_drift_bytes.get(part.gpu_uuid, 0)
        self._last_drift_bytes[part.gpu_uuid] = drift_bytes
        is_empty = charged_bytes == driver_bytes == 0
        wanted = max(0, told + (drift_bytes if is_empty else _shown_by_both(before, drift_bytes)))
        if abs(wanted - told) >= _DRIFT_BYTES and job.lease is not None:
            self._overhead_bytes[part.gpu_uuid] = wanted
            self._last_drift_bytes[part.gpu_uuid] = 0
            self.engine.enforcer.set_overhead(job.lease, part.gpu_uuid, wanted)


def _shown_by_both(one_bytes: int, other_bytes: int) -> int:
    """Return the smaller of two differences; 0 where one is a surplus and the other none."""
    if one_bytes > 0 and other_bytes > 0:
        return min(one_bytes, other_bytes)
    return max(one_bytes, other_bytes) if one_bytes < 0 and other_bytes < 0 else 0


def _violation(part: Slice, driver_bytes: int) -> str:
    return (
        f"it held {format_memory(driver_bytes)} of GPU {part.gpu_uuid}, over its slice of "
        f"{format_memory(part.memory_bytes)}"
    )
