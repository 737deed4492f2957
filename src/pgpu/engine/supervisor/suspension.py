"""Holds a job while the ledger has it as suspended, and resumes it once no other job needs its place.

The ledger has which job is suspended for which one; a file has how far its processes have left the GPU. So after a crash at
any point the next agent continues from there.

A job that could not grow is parked in the same way: it leaves its GPU for no job in particular, its lease counts no more once it has
left, and it comes back when a round has granted it a larger one (`leases.lease_growth`).
"""

import time
from collections.abc import Sequence

from pgpu.enforcement.compute_word import Hold
from pgpu.engine.admission.idle_leases import RECLAIM_GRACE_SECONDS
from pgpu.engine.engine import Engine
from pgpu.engine.leases.departure import Departure
from pgpu.engine.leases.lease_growth import mark_left
from pgpu.engine.leases.parking_state import Stage
from pgpu.engine.supervisor.aside import CAME_BACK, Aside, has_returned
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
        if self._is_parked(job, lease):
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

    def _is_parked(self, job: Job, lease: Lease) -> bool:
        """Continue to park a job, or to bring it back; return False if it may run."""
        # Without `aside` also of a job that ended while it was parked: what it left behind has no place on the GPU.
        if job.is_aside or (self.aside is None and job.parked_at_seconds is not None):
            self._hold(lease, is_held=True)
            if self.aside is None:
                self._park(job)
            else:
                self.aside.leave(job)
            return True
        if job.state.is_final or job.suspended_by is not None:
            return False
        if self.aside is not None:
            return self.aside.is_coming_back(job)
        return self.leaving.is_under_way and not has_returned(self.engine, self.leaving, job)

    def _park(self, job: Job) -> None:
        """Continue to move a job that could not grow to the host, or what it has begun on its GPU since."""
        is_parked = job.parked_at_seconds is not None
        # An agent that is offered no driver that moves it would leave its memory where it is, and its lease counted no more.
        may_leave = is_parked or self.engine.can_leave(job)
        stage = self.leaving.leave(job, job.id) if may_leave else Stage.REFUSED
        if stage is Stage.LEAVING or (stage is Stage.AWAY and is_parked):
            return
        with self.engine.deciding() as decision:
            entry = decision.entry(job.id)
            if not entry.job.is_aside:
                return
            if stage is Stage.AWAY:
                decision.put(mark_left(entry, time.time()))
            elif not is_parked:  # it waits on its GPU, and is refused with its next wish
                decision.put(replace(entry, job=replace(entry.job, wanted_at_seconds=None)))
            elif entry.stop_grace_seconds is None:
                stopped = replace(entry.job, warning=CAME_BACK)
                decision.put(replace(entry, job=stopped, stop_grace_seconds=RECLAIM_GRACE_SECONDS))
        self.engine.wake([job.id])

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
