"""Makes the slice of a job of unknown size fit, while it runs, once its peak has not grown for a while.

Only a job whose size nobody knew when it started is touched, once, and never below what it holds. It refuses to shrink
what a framework took only because it was there: that pool cannot be told from need.
"""

from dataclasses import replace

from pgpu.engine.engine import Engine
from pgpu.engine.history.run_history import MemoryObservation, history_name
from pgpu.engine.leases.lease_resize import resize
from pgpu.model import Job, Resize
from pgpu.scheduling.demand import Basis, shrunk_bytes

GROWN = 1.01
"""A peak that grew by less is stable."""


class Autoshrink:
    """One job's slice."""

    def __init__(self, engine: Engine, stable_seconds: float) -> None:
        """Watch nothing yet.

        Args:
            engine: Of the job.
            stable_seconds: How long its peak must not have grown.
        """
        self._engine = engine
        self._stable_seconds = stable_seconds
        self._peak_bytes = 0
        self._grown_at_seconds = 0.0

    def look(self, job: Job, observed: MemoryObservation, used_bytes: int, now_seconds: float) -> None:
        """Shrink the slice if it is time.

        Args:
            job: As the ledger has it now.
            observed: What it held until now.
            used_bytes: Most that one of its slices holds now.
            now_seconds: On a clock that is never set.

        Raises:
            PgpuError: The slice cannot be changed.
        """
        if job.request.basis != Basis.UNKNOWN or job.lease is None or observed.peak_bytes == 0:
            return
        if observed.peak_bytes > self._peak_bytes * GROWN:
            self._peak_bytes, self._grown_at_seconds = observed.peak_bytes, now_seconds
        elif now_seconds - self._grown_at_seconds >= self._stable_seconds:
            slice_bytes = job.lease.slices[0].memory_bytes
            fit_bytes = shrunk_bytes(slice_bytes, observed.peak_bytes, used_bytes, self._floor_bytes(job))
            if fit_bytes is not None:
                resize(self._engine, job.id, Resize(fit_bytes))
                self._note_measured(job.id)

    def _note_measured(self, job_id: str) -> None:
        with self._engine.ledger.decision() as decision:
            entry = decision.entry(job_id)
            request = replace(entry.job.request, basis=Basis.MEASURED.value)
            decision.put(replace(entry, job=replace(entry.job, request=request)))

    def _floor_bytes(self, job: Job) -> int:
        """Return what an earlier run of the same call held: this one may come to it later than after a minute."""
        held = {part.gpu_uuid for part in job.lease.slices} if job.lease is not None else set()
        names = {history_name(gpu) for gpu in self._engine.gpus.gpus() if gpu.uuid in held}
        with self._engine.ledger.view() as view:
            peaks = [peak for name in names for peak in view.history.need_of_call((job.signature, job.owner_uid), name)]
        return max(peaks, default=0)
