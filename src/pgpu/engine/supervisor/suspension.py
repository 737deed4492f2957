"""Holds a job while the ledger says that it is suspended, and lets it go on once nobody needs its place any more.

The ledger remembers that, and a file how far it has left its GPU, so a crash of anybody leaves nothing that the next
supervisor would not see.
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
    """What one supervisor does of it."""

    engine: Engine
    leaving: Departure
    aside: Aside | None = None
    """Of a job that parks."""

    def follow(self, job: Job, holding: Sequence[Entry]) -> None:
        """Hold it and have it leave, or have it come back and let it go on, as far as this room is concerned.

        Args:
            job: As the ledger has it now.
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
        """Others' holds are theirs."""
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
