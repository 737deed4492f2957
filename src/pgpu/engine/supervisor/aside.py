"""A job that lives on without its lease: it leaves its GPU, and comes back once it is granted its place again.

Its main process hears SIGTSTP before anything leaves and SIGCONT when all is there. What holds GPU memory goes to the host as
it is, where the driver moves processes and it is small enough; else it is ended, and the main process starts it again. The
ledger says how it stands, so whoever looks after the job next goes on. It refuses to let a job stay that does not leave, or
that uses its GPU while it has no slice: such a job is stopped.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from pgpu.engine.admission.idle_leases import RECLAIM_GRACE_SECONDS, is_waited_for, mark_parked
from pgpu.engine.admission.snapshot import available_bytes
from pgpu.engine.engine import Engine
from pgpu.engine.leases.departure import Departure
from pgpu.engine.leases.eviction import PlaceRefusedError, occupants
from pgpu.engine.leases.parking_state import Parking, Stage, Traveller, load_parking, save_parking
from pgpu.host.process_identity import is_alive
from pgpu.model import SEALED_HOST_MEMORY_BYTES, Job, Lease
from pgpu.structs import Struct, field, replace
from pgpu.units import GIB

MOST_MOVED_BYTES = 8 * GIB
"""More takes longer than somebody who waits for it has to wait: over PCIe 4.0 x16 it is gone in half a second."""

_TERM_SECONDS = 1.0
"""After SIGTERM, what holds memory has so long before SIGKILL."""

_MOST_BREACHES = 3
"""Looks, one a second, that find a parked job on its GPU: one may be a context that was being made, the third is none."""

STAYED = "it did not leave its GPU when its lease was taken"
CAME_BACK = "it used its GPU while it was parked"


class Aside(Struct):
    """One supervisor's part in it."""

    engine: Engine
    leaving: Departure
    tell: Callable[[int], bool]
    """Sends its main process a signal; says whether it was sent."""

    look_again: Callable[[], None]
    """Has this asked again soon."""

    host_bytes: Callable[[], int] = available_bytes
    patience_seconds: float = 5.0
    """Who has not left so long after it began to be emptied never will: the job is stopped."""

    _is_told: bool = field(default=False)
    _has_gone_on: bool = field(default=False)
    _asked: set[int] = field(default_factory=set)
    """Processes that were asked to end."""

    _emptied_from_seconds: float | None = field(default=None)
    """Since when what holds memory is asked to end; None: it is not."""

    _breaches: int = field(default=0)
    reproach: str | None = field(default=None)
    """Why it was stopped; None: it was not, as far as this supervisor knows."""

    def leave(self, job: Job) -> None:
        """Go on with leaving, or see that it stays away; its launches are held.

        Raises:
            PgpuError: The ledger or the GPU cannot be used.
            OSError: It cannot be written down how far it is.
        """
        if job.lease is None:
            return
        if job.parked_at_seconds is not None:
            self._keep_away(job)
            return
        if not self._is_told:
            self._has_gone_on, self._is_told = False, self.tell(signal.SIGTSTP)
        if not self._is_told:
            return  # whoever runs it is away: it is told at the next tick
        if self._has_left(job, job.lease):
            self._write_parked(job.id)
        else:
            self.look_again()

    def is_coming_back(self, job: Job) -> bool:
        """Go on with coming back; say whether it has not come back yet, so that its launches are still held.

        Raises:
            PgpuError: The ledger cannot be used.
            OSError: It cannot be written down how far it is.
        """
        parking = load_parking(self.engine.places(job.id).parking)
        if parking is not None and parking.by == job.id and not self._is_back(job):
            self.look_again()
            return True
        if not self._has_gone_on:
            self._is_told, self._emptied_from_seconds, self._breaches = False, None, 0
            self._asked.clear()
            self._has_gone_on = self.tell(signal.SIGCONT)
        return False

    def _keep_away(self, job: Job) -> None:
        """Nothing but launches waits for a hold: whatever of a parked job comes to hold memory is ended, and then the job."""
        there = self.leaving.find_travellers(job)
        self._end(there, signal.SIGKILL)
        self._breaches += bool(there)
        if self._breaches >= _MOST_BREACHES:
            self._stop(job.id, CAME_BACK)

    def _has_left(self, job: Job, lease: Lease) -> bool:
        with self.engine.ledger.view() as view:
            is_hurried = is_waited_for(job, view.holding())
        taken_seconds = time.time() - (job.reclaimed_at_seconds or 0.0)
        is_late = is_hurried and taken_seconds >= RECLAIM_GRACE_SECONDS
        if not is_late and not self._asked and self._can_move(job, lease, is_hurried=is_hurried):
            stage = self.leaving.leave(job, job.id)
            if stage is not Stage.REFUSED:
                return stage is Stage.AWAY
        return self._is_emptied(job, lease, is_hard=taken_seconds >= _TERM_SECONDS)

    def _can_move(self, job: Job, lease: Lease, *, is_hurried: bool) -> bool:
        used_bytes = sum(use.used_bytes for use in self.engine.enforcer.use(lease))
        is_small = not is_hurried or used_bytes <= MOST_MOVED_BYTES
        return is_small and self.engine.can_leave(job) and used_bytes <= self._room_bytes(job)

    def _room_bytes(self, job: Job) -> int:
        """What the host has for it: what a container is moved to counts as its own memory, and it has other."""
        limit_bytes = job.spec.host_memory_bytes or (SEALED_HOST_MEMORY_BYTES if job.spec.is_sealed else None)
        return self.host_bytes() if limit_bytes is None else min(self.host_bytes(), limit_bytes // 2)

    def _is_emptied(self, job: Job, lease: Lease, *, is_hard: bool) -> bool:
        """End what holds memory of the GPU; say whether nothing does any more."""
        path = self.engine.places(job.id).parking
        parking = load_parking(path)
        travellers = () if parking is None else parking.travellers
        there = self.leaving.find_travellers(job, travellers)
        frozen = [each for each in travellers if is_alive(each.process) and each not in there]
        self._end(there, signal.SIGKILL if is_hard else signal.SIGTERM)
        self._end(frozen, signal.SIGKILL)  # it could not hear anything else
        if there or frozen or self.engine.enforcer.is_held(lease):
            if self._is_emptied_too_long():
                self._stop(job.id, STAYED)
            return False
        save_parking(path, Parking(job.id, Stage.AWAY))
        return True

    def _end(self, travellers: Sequence[Traveller], number: signal.Signals) -> None:
        for each in travellers:
            if number is signal.SIGKILL or each.process.pid not in self._asked:
                self._asked.add(each.process.pid)
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(each.process.pid, number)

    def _is_emptied_too_long(self) -> bool:
        now_seconds = time.monotonic()
        if self._emptied_from_seconds is None:
            self._emptied_from_seconds = now_seconds
        return now_seconds - self._emptied_from_seconds >= self.patience_seconds

    def _stop(self, job_id: str, why: str) -> None:
        if self.reproach is not None:
            return
        with self.engine.deciding() as decision:
            entry = decision.entry(job_id)
            if entry.stop_grace_seconds is None:
                job = replace(entry.job, warning=why)
                decision.put(replace(entry, job=job, stop_grace_seconds=RECLAIM_GRACE_SECONDS))
        self.reproach = why
        self.engine.wake([job_id])

    def _write_parked(self, job_id: str) -> None:
        with self.engine.deciding() as decision:
            entry = decision.entry(job_id)
            if entry.job.is_aside and entry.job.parked_at_seconds is None:
                decision.put(mark_parked(entry, time.time()))

    def _is_back(self, job: Job) -> bool:
        """Whether those have left whose place it was granted, and all of it is back."""
        try:
            stays = occupants(self.engine, job)
        except PlaceRefusedError:
            self._wait_again(job.id)
            return False
        self.engine.wake(stays)
        return not stays and self.leaving.come_back(job)

    def _wait_again(self, job_id: str) -> None:
        """Whoever was to make room does not leave: it is parked as before, and wants a place still."""
        with self.engine.deciding() as decision:
            entry = decision.entry(job_id)
            if not entry.job.is_aside:
                now_seconds = time.time()
                job = replace(mark_parked(entry, now_seconds).job, wanted_at_seconds=now_seconds)
                decision.put(replace(entry, job=job))
