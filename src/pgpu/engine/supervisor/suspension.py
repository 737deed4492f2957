"""Holds a job while the ledger has it as suspended, and resumes it once no other job needs its place.

The ledger has which job is suspended for which one; a file has how far its processes have left the GPU. So after a crash at
any point the next agent continues from there.
"""

import time
from collections.abc import Sequence

from pgpu.enforcement.compute_word import Hold
from pgpu.engine.engine import Engine
from pgpu.engine.leases.departure import Departure
from pgpu.engine.leases.parking_state import Stage
from pgpu.engine.supervisor.aside import Aside
from pgpu.errors import NodeError
from pgpu.ledger import Entry
from pgpu.model import Job, Lease
from pgpu.structs import Struct, replace


class Suspension(Struct):
    """The suspension of one supervised job."""

    engine: Engine
    leaving: Departure
    aside: Aside | None = None
    """For a job that can park; None for other jobs."""

    def follow(self, job: Job, holding: Sequence[Entry]) -> None:
        """Continue to hold the job and to move it off its GPU, or to move it back and to resume it.

        Called each second and after wake-ups; each call makes one step. Moves run in a thread of their own.

        Args:
            job: Its current entry in the ledger.
            holding: Every job that holds a lease.

        Raises:
            PgpuError: The ledger, the slice or the GPU cannot be read or written.
        """
        if job.lease is None:
            return
        try:
            self._hold(job.lease, is_held=self._is_suspended(job, job.lease, holding))
        except OSError as exc:
            raise NodeError(f"job {job.id} cannot be suspended: {exc.strerror}") from exc

    def _is_suspended(self, job: Job, lease: Lease, holding: Sequence[Entry]) -> bool:
        by = job.suspended_by
        if self.aside is not None and not job.state.is_final:
            if job.is_aside:
                self._hold(lease, is_held=True)
                self.aside.leave(job)
                return True
            if by is None and self.aside.is_coming_back(job):
                return True
        if by is not None and any(entry.job.id == by and entry.is_lease_held for entry in holding):
            self._hold(lease, is_held=True)
            if self.leaving.leave(job, by) is not Stage.REFUSED:
                return True
        elif not self.leaving.come_back(job):
            return True
        if by is not None:
            self._resume(job)
        return False

    def _hold(self, lease: Lease, *, is_held: bool) -> None:
        # Only the bit of suspensions changes; turns and trials set other bits of the same word.
        words = self.engine.enforcer.words(lease)
        for part, word in zip(lease.slices, words, strict=False):  # none before the slice is made
            if bool(word.holds & Hold.SUSPENSION) != is_held:
                self.engine.enforcer.hold(lease, part.gpu_uuid, Hold.SUSPENSION, is_held=is_held)

    def _resume(self, job: Job) -> None:
        with self.engine.deciding() as decision:
            entry = decision.entry(job.id)
            if entry.job.suspended_by == job.suspended_by:
                resumed = replace(entry.job, suspended_by=None, resumed_at_seconds=time.time())
                decision.put(replace(entry, job=resumed))
