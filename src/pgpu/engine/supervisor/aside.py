"""Parking: a job that runs on without its lease leaves its GPU, and comes back once it is granted a place again.

Its main process gets SIGTSTP before its processes leave the GPU, and SIGCONT when all of them are back. Processes with GPU
memory are moved to the host if the driver can move them and the host has room; otherwise they are ended, and the main process
starts them again. Each step is in the ledger or in the file of the move, so the next agent continues after a crash. A job that
does not leave, or that uses its GPU while it is parked, is stopped.
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
"""Largest memory that is moved while another job waits: it takes half a second over PCIe 4.0 x16; more is ended instead."""

_TERM_SECONDS = 1.0
"""Time between SIGTERM and SIGKILL for processes that hold memory."""

_MOST_BREACHES = 3
"""Checks, one a second, that find a parked job on its GPU before it is stopped: the first may find a context that was being made
when the job was held."""

STAYED = "it did not leave its GPU when its lease was taken"
CAME_BACK = "it used its GPU while it was parked"


class Aside(Struct):
    """The parking of one supervised job."""

    engine: Engine
    leaving: Departure
    send_signal: Callable[[int], bool]
    """Sends the job's main process a signal; returns whether it was sent."""

    schedule_check: Callable[[], None]
    """Schedules the next call soon, before the next tick."""

    host_bytes: Callable[[], int] = available_bytes
    patience_seconds: float = 5.0
    """The job is stopped if its processes still hold memory this long after the first was asked to end."""

    _is_suspend_sent: bool = field(default=False)
    _is_resume_sent: bool = field(default=False)
    _asked: set[int] = field(default_factory=set)
    """PIDs of processes that got SIGTERM or SIGKILL."""

    _emptied_from_seconds: float | None = field(default=None)
    """When the first of the processes was asked to end, monotonic; None: none was."""

    _breaches: int = field(default=0)
    stop_reason: str | None = field(default=None)
    """Why this thread stopped the job; None: it did not."""

    def leave(self, job: Job) -> None:
        """Continue to leave the GPU, or check that the parked job stays off it; the job's launches are held.

        Raises:
            PgpuError: The ledger or the GPU cannot be used.
            OSError: The state of the move cannot be written.
        """
        if job.lease is None:
            return
        if job.parked_at_seconds is not None:
            self._keep_away(job)
            return
        if not self._is_suspend_sent:
            self._is_resume_sent, self._is_suspend_sent = False, self.send_signal(signal.SIGTSTP)
        if not self._is_suspend_sent:
            return  # the container engine is unreachable: the next tick sends it
        if self._has_left(job, job.lease):
            self._write_parked(job.id)
        else:
            self.schedule_check()

    def is_coming_back(self, job: Job) -> bool:
        """Continue to come back; return True while not all of it is back, so that its launches stay held.

        Raises:
            PgpuError: The ledger cannot be used.
            OSError: The state of the move cannot be written.
        """
        parking = load_parking(self.engine.places(job.id).parking)
        if parking is not None and parking.by == job.id and not has_returned(self.engine, self.leaving, job):
            self.schedule_check()
            return True
        if not self._is_resume_sent:
            self._is_suspend_sent, self._emptied_from_seconds, self._breaches = False, None, 0
            self._asked.clear()
            self._is_resume_sent = self.send_signal(signal.SIGCONT)
        return False

    def _keep_away(self, job: Job) -> None:
        # A hold stops launches and not allocations: a process of a parked job that holds memory is killed, and at the third
        # time the job is stopped.
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
        # The memory of a container that is moved to the host counts in the container's own limit, which it needs for other
        # data too.
        limit_bytes = job.spec.host_memory_bytes or (SEALED_HOST_MEMORY_BYTES if job.spec.is_sealed else None)
        return self.host_bytes() if limit_bytes is None else min(self.host_bytes(), limit_bytes // 2)

    def _is_emptied(self, job: Job, lease: Lease, *, is_hard: bool) -> bool:
        """End the processes that hold memory of the GPU; return whether none holds memory any more."""
        path = self.engine.places(job.id).parking
        parking = load_parking(path)
        travellers = () if parking is None else parking.travellers
        there = self.leaving.find_travellers(job, travellers)
        frozen = [each for each in travellers if is_alive(each.process) and each not in there]
        self._end(there, signal.SIGKILL if is_hard else signal.SIGTERM)
        self._end(frozen, signal.SIGKILL)  # a process that the driver has frozen handles no other signal
        if there or frozen or self.engine.enforcer.is_held(lease):
            now_seconds = time.monotonic()
            if self._emptied_from_seconds is None:
                self._emptied_from_seconds = now_seconds
            if now_seconds - self._emptied_from_seconds >= self.patience_seconds:
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

    def _stop(self, job_id: str, why: str) -> None:
        if self.stop_reason is not None:
            return
        with self.engine.deciding() as decision:
            entry = decision.entry(job_id)
            if entry.stop_grace_seconds is None:
                job = replace(entry.job, warning=why)
                decision.put(replace(entry, job=job, stop_grace_seconds=RECLAIM_GRACE_SECONDS))
        self.stop_reason = why
        self.engine.wake([job_id])

    def _write_parked(self, job_id: str) -> None:
        with self.engine.deciding() as decision:
            entry = decision.entry(job_id)
            if entry.job.is_aside and entry.job.parked_at_seconds is None:
                decision.put(mark_parked(entry, time.time()))


def has_returned(engine: Engine, leaving: Departure, job: Job) -> bool:
    """Continue to bring a job back that was granted a place; return whether the jobs there have left and all its processes are back.

    Raises:
        PgpuError: The ledger cannot be used.
        OSError: The state of the move cannot be written.
    """
    try:
        stays = occupants(engine, job)
    except PlaceRefusedError:
        # The job that was to make room cannot leave: this one is parked again, and waits for another place.
        with engine.deciding() as decision:
            entry = decision.entry(job.id)
            if not entry.job.is_aside:
                now_seconds = time.time()
                parked = replace(mark_parked(entry, now_seconds).job, wanted_at_seconds=now_seconds)
                decision.put(replace(entry, job=parked))
        return False
    engine.wake(stays)
    return not stays and leaving.come_back(job)
