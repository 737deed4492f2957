"""A suspended job leaves its GPU and comes back: the part of the thread that supervises it.

If the driver can move whole processes to the host, the processes of a job that does not oversubscribe are moved. Every other job
counts as away once none of its work is in flight. The caller holds the job's launches.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pgpu.enforcement.checkpoints import CheckpointError, Checkpoints, NoRoomError, StillWorkingError
from pgpu.engine.admission.snapshot import available_bytes
from pgpu.engine.context import EngineContext
from pgpu.engine.leases.parking_state import Parking, Stage, Traveller, is_travelling, load_parking, save_parking
from pgpu.engine.unix_sockets import send_datagram
from pgpu.errors import NodeError
from pgpu.host.process_identity import identify_running, is_alive
from pgpu.host.stderr_log import Complaints
from pgpu.model import Job
from pgpu.structs import Struct, field, replace

QUIET_SECONDS = 10.0
"""How long to wait at most for work in flight of a job that keeps its memory; then the other job starts beside it."""

STAYS = "it has managed memory, or shares memory with another process, which drivers cannot move"

CRAMPED = "the host, or the limit of its control group, has no room for its memory"

TRY_SECONDS = 2.0
"""Longest single attempt to lock a process: the lock stops its other threads."""

TROUBLE_COUNT = 5
"""Failed attempts to come back, a second apart, after which it is reported as the job's warning."""

PATIENCE_SECONDS = 60.0
"""Longest wait for work in flight before a move is given up and the job continues."""

_OVER_SECONDS = 1.0
"""Work counts as finished so long after its expected end, even if the job has not polled it."""

_NANOSECONDS = 1e9


def _bytes_beside(pid: int) -> int:
    return available_bytes(own_cgroup=Path(f"/proc/{pid}/cgroup"))


class Departure(Struct):
    """The move of one supervised job."""

    context: EngineContext
    job_id: str
    owns: Callable[[int], bool]
    """Whether a process is the job's, by host PID."""

    host_bytes: Callable[[int], int] = _bytes_beside
    """Returns how much more host memory a process may hold, by its PID."""

    _mover: "Mover | None" = None
    _held_at_seconds: float | None = field(default=None)

    @property
    def is_under_way(self) -> bool:
        """Whether the driver reports less memory of the job than its meter counts, or is about to."""
        return is_travelling(self._path)

    @property
    def trouble(self) -> str | None:
        """Why the job is still away although its place is free; None where it is not."""
        return None if self._mover is None else self._mover.trouble

    def leave(self, job: Job, by: str) -> Stage:
        """Continue leaving; called again and again while a job with a lease is suspended and held.

        Args:
            job: The supervised job.
            by: Id of the job that gets its place; its own id for no job in particular.

        Raises:
            PgpuError: The GPU cannot be read.
            OSError: The state cannot be written.
        """
        parking = load_parking(self._path)
        if self._mover is not None and self._mover.is_moving:
            return Stage.LEAVING
        if parking is not None and parking.stage is Stage.REFUSED and parking.by == by:
            return Stage.REFUSED
        if not self.context.can_leave(job):
            return self._wait_until_quiet(job, parking, by)
        known = () if parking is None else parking.travellers
        there = self.find_travellers(job, known)
        # Checked each time: a running job may have allocated managed memory since.
        if why := self._obstacle(job, () if known else there):
            return self._refuse(by, why)
        if not there and not self._is_context_expected(job, known):
            return self._mark_away(parking, Parking(by, Stage.AWAY, known))
        if there:
            travellers = {each.process: each for each in (*known, *there)}
            self._get_mover(job).begin_leaving(Parking(by, Stage.LEAVING, tuple(travellers.values())))
        return Stage.LEAVING

    def _wait_until_quiet(self, job: Job, parking: Parking | None, by: str) -> Stage:
        """Count as away once nothing is in flight; its memory stays, or the driver moves it page by page."""
        if not self._is_held_for(QUIET_SECONDS):
            boards = [] if job.lease is None else self.context.enforcer.boards(job.lease)
            ends = [board.in_flight_until_ns / _NANOSECONDS for board in boards if board.in_flight_until_ns]
            if any(end_seconds + _OVER_SECONDS >= time.monotonic() for end_seconds in ends):
                return Stage.LEAVING
        # What was moved before is brought back as soon as a driver that does it is offered again.
        before = Parking(by, Stage.AWAY) if parking is None else parking
        return self._mark_away(parking, replace(before, by=by, stage=Stage.AWAY))

    def come_back(self, job: Job) -> bool:
        """Continue coming back; called again and again while the place of a job with a lease is free.

        Returns:
            Whether all of it is back, so that it may continue.

        Raises:
            OSError: The state cannot be written.
        """
        self._held_at_seconds = None
        parking = load_parking(self._path)
        if self._mover is not None and self._mover.is_moving:
            return False
        if parking is None:
            if self._has_unmovable_memory(job):
                self._refuse("", STAYS)
            return True
        if parking.travellers:
            self._get_mover(job).begin_coming_back(parking)
            return False
        self._remove_state(parking)
        return True

    def close(self) -> None:
        """Wait up to a second for a move that is under way."""
        if self._mover is not None:
            self._mover.wait(1.0)

    @property
    def _path(self) -> Path:
        return self.context.places(self.job_id).parking

    def _has_unmovable_memory(self, job: Job) -> bool:
        # Some drivers corrupt managed memory and memory shared with another process when they move it, so it is never moved.
        return job.lease is not None and any(use.stays for use in self.context.enforcer.use(job.lease))

    def _obstacle(self, job: Job, travellers: Sequence[Traveller]) -> str:
        """Return why a job cannot leave; empty if it may."""
        if self._has_unmovable_memory(job):
            return STAYS
        # The memory of a process that is moved to the host counts in its control group, which may limit it.
        wanted_bytes = sum(each.held_bytes for each in travellers)
        return CRAMPED if any(wanted_bytes > self.host_bytes(each.process.pid) for each in travellers) else ""

    def _refuse(self, by: str, reason: str) -> Stage:
        save_parking(self._path, Parking(by, Stage.REFUSED, reason=reason))
        return Stage.REFUSED

    def _mark_away(self, before: Parking | None, now: Parking) -> Stage:
        if before != now:
            save_parking(self._path, now)
            send_datagram(self.context.places(now.by).wake_socket, b"")
        return Stage.AWAY

    def _remove_state(self, parking: Parking) -> None:
        # A refusal stays: the next attempt would be refused again.
        if not parking.reason:
            self._path.unlink(missing_ok=True)
        elif parking.stage is not Stage.REFUSED or (parking.by and not self._holds_lease(parking.by)):
            save_parking(self._path, replace(parking, by="", stage=Stage.REFUSED))

    def _holds_lease(self, job_id: str) -> bool:
        # The job that was refused the place must find the refusal as long as it has its grant.
        with self.context.ledger.view() as view:
            return any(entry.job.id == job_id for entry in view.holding())

    def find_travellers(self, job: Job, known: Sequence[Traveller] = ()) -> list[Traveller]:
        """Return the job's processes that hold memory of its GPU now; processes that were moved before are among them.

        Raises:
            PgpuError: The GPU cannot be read.
        """
        found, moved = [], {each.process for each in known}
        for part in job.lease.slices if job.lease is not None else ():
            for each in self.context.gpus.processes(part.gpu_uuid):
                holder = identify_running(each.pid) if each.used_bytes != 0 else None
                if holder is not None and (holder in moved or self.owns(each.pid)):
                    found.append(Traveller(holder, each.used_bytes or 0))
        return found

    def _is_context_expected(self, job: Job, known: Sequence[Traveller]) -> bool:
        # A process may have been about to make a CUDA context when the job was held: it is not on the GPU yet.
        uses = [] if job.lease is None else self.context.enforcer.use(job.lease)
        away_count = sum(is_alive(each.process) for each in known)
        if max((use.processes for use in uses), default=0) <= away_count:
            return False
        return not self._is_held_for(QUIET_SECONDS)

    def _is_held_for(self, seconds: float) -> bool:
        now_seconds = time.monotonic()
        if self._held_at_seconds is None:
            self._held_at_seconds = now_seconds
        return now_seconds - self._held_at_seconds >= seconds

    def _get_mover(self, job: Job) -> "Mover":
        if self._mover is not None:
            return self._mover
        if self.context.checkpoints is None:
            raise NodeError(f"job {job.id} left its GPU, and this engine has no driver that could bring it back")

        def free_bytes() -> int:
            uuids = [part.gpu_uuid for part in job.lease.slices] if job.lease is not None else []
            gpu = next(each for each in self.context.gpus.gpus() if each.uuid in uuids)
            return max(0, gpu.memory_bytes - self.context.gpus.memory(gpu.uuid).used_bytes)

        def wake() -> None:
            send_datagram(self.context.places(self.job_id).wake_socket, b"")

        self._mover = Mover(self.context.checkpoints, self._path, free_bytes, wake)
        return self._mover


class Mover(Struct):
    """Moves a job's processes in either direction, in a thread of its own: a move takes long, and must not block the event loop.

    Every step may be repeated, so after a crash the next agent starts again: a process that is away stays away. If one
    process cannot leave, all come back.
    """

    checkpoints: Checkpoints
    path: Path
    """Of the state."""

    free_bytes: Callable[[], int]
    """Free memory of the GPU; raises PgpuError."""

    when_done: Callable[[], None]
    """Called in the thread."""

    trouble: str | None = None
    """Why processes that should be back are not, after `TROUBLE_COUNT` attempts; None otherwise."""

    _thread: threading.Thread | None = field(default=None)
    _failures: int = 0
    _complaints: Complaints = field(default_factory=Complaints)

    @property
    def is_moving(self) -> bool:
        """Whether a move is under way."""
        return self._thread is not None and self._thread.is_alive()

    def begin_leaving(self, parking: Parking) -> None:
        """Start to move these travellers to the host; no other move may be under way.

        Raises:
            OSError: The state cannot be written; nothing is moved then.
        """
        # Written first: after a crash the next agent reads from it which processes may be away.
        save_parking(self.path, parking)
        self._start_thread(lambda: self._leave(parking))

    def begin_coming_back(self, parking: Parking) -> None:
        """Start to move these travellers back; no other move may be under way."""
        self._start_thread(lambda: self._come_back(parking))

    def wait(self, seconds: float) -> None:
        """Wait for the end of the move, at most this long."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _start_thread(self, move: Callable[[], None]) -> None:
        def run() -> None:
            try:
                move()
            except OSError as exc:
                self._complaints.say(f"{self.path} cannot be written: {exc.strerror}")
            self.when_done()

        # A daemon thread: a move that hangs in the driver must not block the exit of the process.
        self._thread = threading.Thread(target=run, name="parking", daemon=True)
        self._thread.start()

    def _leave(self, parking: Parking) -> None:
        until_seconds = time.monotonic() + PATIENCE_SECONDS
        try:
            for each in parking.travellers:
                self._take_away(each, until_seconds)
        except CheckpointError as exc:
            self._complaints.say(exc)
            # All or none: a job with some of its processes on the GPU could not be suspended or run.
            left = self._restore_all(parking.travellers)
            save_parking(self.path, replace(parking, stage=Stage.REFUSED, travellers=left, reason=str(exc)))

    def _take_away(self, traveller: Traveller, until_seconds: float) -> None:
        while is_alive(traveller.process):
            try:
                self.checkpoints.leave(traveller.process.pid, TRY_SECONDS)
            except StillWorkingError:
                if time.monotonic() >= until_seconds:
                    raise
            else:
                return

    def _come_back(self, parking: Parking) -> None:
        left = self._restore_all(parking.travellers)
        if left:
            save_parking(self.path, replace(parking, travellers=left))
        elif parking.stage is Stage.REFUSED:
            save_parking(self.path, replace(parking, travellers=()))
        else:
            self.path.unlink(missing_ok=True)

    def _restore_all(self, travellers: Sequence[Traveller]) -> tuple[Traveller, ...]:
        left: list[Traveller] = []
        why = None
        for each in travellers:
            try:
                self._restore(each)
            except CheckpointError as exc:
                self._complaints.say(exc)
                why = str(exc)
                left.append(each)
        self._failures = self._failures + 1 if left else 0
        self.trouble = why if self._failures >= TROUBLE_COUNT else None
        return tuple(left)

    def _restore(self, traveller: Traveller) -> None:
        if not is_alive(traveller.process):
            return
        # Without enough free memory it is not tried: NVIDIA's r580 never restores a process that found none once.
        # Source: NVIDIA/cuda-checkpoint, issue 44.
        if self.checkpoints.is_away(traveller.process.pid) and self.free_bytes() < traveller.held_bytes:
            raise NoRoomError(f"process {traveller.process.pid} cannot come back yet: others hold its place on the GPU")
        self.checkpoints.come_back(traveller.process.pid)
