"""Compares, once a second, the memory that the driver reports for a job with its meter and with its slice.

The meter binds allocations of the shim; this finds memory that bypasses it, and counts the driver's overhead as part of the
slice. It returns a violation; the caller stops the job.
"""

from pgpu.enforcement import SliceUse
from pgpu.engine.engine import Engine
from pgpu.engine.history.run_history import NOTHING, MemoryObservation
from pgpu.model import Job, Lease, Slice
from pgpu.runtimes import RunningJob
from pgpu.structs import Struct, field
from pgpu.units import MIB, format_memory

TOLERANCE = 1.05
"""A job above its slice by more than this factor is reported: drivers count some memory that no program allocated."""

_DRIFT_BYTES = MIB
"""Smaller differences between driver and meter are ignored."""


class Watch(Struct):
    """The memory of one running job, from one reading to the next."""

    engine: Engine
    observed: MemoryObservation = NOTHING
    """What its slices have held since its start."""

    used_bytes: int = 0
    """Most that one of its slices holds now."""

    violation: str | None = None
    """The first reading above its slice, in one line; None: there was none."""

    _overhead_bytes: dict[str, int] = field(default_factory=dict)
    _last_drift_bytes: dict[str, int] = field(default_factory=dict)

    def look(self, job: Job, running: RunningJob) -> None:
        """Read the driver and the meters once.

        Raises:
            PgpuError: One of them cannot be read.
        """
        if job.lease is None:
            return
        counted_before = self._counted(job.lease)
        reported = {part.gpu_uuid: self._driver_bytes(part.gpu_uuid, running) for part in job.lease.slices}
        counted_after = self._counted(job.lease)
        self.used_bytes = max((use.used_bytes for use in counted_after.values()), default=0)
        for part in job.lease.slices:
            driver_bytes = reported[part.gpu_uuid]
            if (use := counted_after.get(part.gpu_uuid)) is not None:
                self.observed = self.observed.with_more(use, part)
                before = counted_before.get(part.gpu_uuid, use)
                if driver_bytes is not None:
                    self._follow_drift(job, part, max(before.used_bytes, use.used_bytes), driver_bytes)
            if driver_bytes is not None and driver_bytes > part.memory_bytes * TOLERANCE and self.violation is None:
                self.violation = (
                    f"it held {format_memory(driver_bytes)} of GPU {part.gpu_uuid}, over its slice of "
                    f"{format_memory(part.memory_bytes)}"
                )

    def look_at_meters(self, job: Job) -> None:
        """Read the meters of a job that has ended: its last peak counts.

        Raises:
            PgpuError: One of them cannot be read.
        """
        if job.lease is not None:
            counted = self._counted(job.lease)
            for part in job.lease.slices:
                if (use := counted.get(part.gpu_uuid)) is not None:
                    self.observed = self.observed.with_more(use, part)

    def _counted(self, lease: Lease) -> dict[str, SliceUse]:
        """Read the meters: before and after the driver, so that an allocation in between is not taken for drift."""
        return {use.gpu_uuid: use for use in self.engine.enforcer.use(lease)}

    def _driver_bytes(self, gpu_uuid: str, running: RunningJob) -> int | None:
        """Return the bytes that the job's processes hold; None if the driver reports no size for one of them."""
        held = [process.used_bytes for process in self.engine.gpus.processes(gpu_uuid) if running.owns(process.pid)]
        return None if None in held else sum(amount for amount in held if amount is not None)

    def _follow_drift(self, job: Job, part: Slice, charged_bytes: int, driver_bytes: int) -> None:
        """Set the slice's overhead to a difference that two readings in a row show: one may be an allocation under way.

        If driver and meter both show 0 bytes, no allocation is under way, and one reading is enough: the job's next process
        starts with the whole slice.
        """
        counted_bytes = self._overhead_bytes.get(part.gpu_uuid, 0)
        # The meter includes the overhead, unless it shows 0 bytes.
        drift_bytes = driver_bytes - (charged_bytes or counted_bytes)
        before = self._last_drift_bytes.get(part.gpu_uuid, 0)
        self._last_drift_bytes[part.gpu_uuid] = drift_bytes
        is_empty = charged_bytes == driver_bytes == 0
        overhead_bytes = max(0, counted_bytes + (drift_bytes if is_empty else _shown_by_both(before, drift_bytes)))
        if abs(overhead_bytes - counted_bytes) >= _DRIFT_BYTES and job.lease is not None:
            self._overhead_bytes[part.gpu_uuid] = overhead_bytes
            self._last_drift_bytes[part.gpu_uuid] = 0
            self.engine.enforcer.set_overhead(job.lease, part.gpu_uuid, overhead_bytes)


def _shown_by_both(one_bytes: int, other_bytes: int) -> int:
    """Return the difference that is nearer to 0; 0 if their signs differ."""
    if one_bytes > 0 and other_bytes > 0:
        return min(one_bytes, other_bytes)
    return max(one_bytes, other_bytes) if one_bytes < 0 and other_bytes < 0 else 0
