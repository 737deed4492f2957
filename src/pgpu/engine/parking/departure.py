"""One victim's side: its place becomes free while it is suspended, and is its own again before it goes on.

Where the driver moves whole processes it does that to a job that does not oversubscribe; of every other job all that can be
waited for is that nothing of it runs. It refuses to hold a job: whoever suspends it does.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pgpu.engine.engine import Engine
from pgpu.engine.parking.mover import Mover
from pgpu.engine.parking.parking_state import Parking, Stage, Traveller, is_travelling, load_parking, save_parking
from pgpu.engine.process.unix_sockets import send_datagram
from pgpu.errors import NodeError
from pgpu.host.process_identity import identify_running, is_alive
from pgpu.model import Gpu, Job

QUIET_SECONDS = 10.0
"""Work of a job whose memory stays is waited for so long at most: then the other starts beside it."""

STAYS = "it has managed memory, or shares memory with another process, which drivers cannot move"

_OVER_SECONDS = 1.0
"""What should have been over for so long is over, though the job has not looked."""

_NANOSECONDS = 1e9


@dataclass(slots=True)
class Departure:
    """What one supervisor does of it."""

    engine: Engine
    job_id: str
    owns: Callable[[int], bool]
    """Whether a process is the job's, by host PID."""

    _mover: Mover | None = None
    _held_at_seconds: float | None = field(default=None, repr=False)

    @property
    def is_under_way(self) -> bool:
        """Whether what the driver tells of the job is less than its meter counts, or about to be."""
        return is_travelling(self._path)

    @property
    def trouble(self) -> str | None:
        """Why the job stands still though nobody needs its place; None where it does not."""
        return None if self._mover is None else self._mover.trouble

    def leave(self, job: Job, by: str) -> Stage:
        """Go on with leaving; asked again and again while a job with a lease is suspended and held.

        Args:
            job: Of this supervisor.
            by: The job that is to have its place, or its own id if nobody in particular.

        Raises:
            PgpuError: The GPU cannot be read.
            OSError: It cannot be written down how far it is.
        """
        parking = load_parking(self._path)
        if self._mover is not None and self._mover.is_moving:
            return Stage.LEAVING
        if parking is not None and parking.stage is Stage.REFUSED and parking.by == by:
            return Stage.REFUSED
        if not self.engine.can_leave(job):
            return self._stay_still(job, parking, by)
        if self._stays(job):
            return self._refused(by)
        known = () if parking is None else parking.travellers
        there = self.there(job, known)
        if not there and not self._somebody_comes(job, known):
            return self._away(parking, Parking(by, Stage.AWAY, known))
        if there:
            travellers = {each.process: each for each in (*known, *there)}
            self._moving(job).begin_leaving(Parking(by, Stage.LEAVING, tuple(travellers.values())))
        return Stage.LEAVING

    def come_back(self, job: Job) -> bool:
        """Go on with coming back; asked again and again while nobody needs the place of a job with a lease.

        Returns:
            Whether all of it is back, so that it may go on.

        Raises:
            OSError: It cannot be written down how far it is.
        """
        self._held_at_seconds = None
        parking = load_parking(self._path)
        if self._mover is not None and self._mover.is_moving:
            return False
        if parking is None:
            if self._stays(job):
                self._refused("")
            return True
        if parking.travellers:
            self._moving(job).begin_coming_back(parking)
            return False
        self._forget(parking)
        return True

    def close(self) -> None:
        """Wait a moment for a move that is under way."""
        if self._mover is not None:
            self._mover.wait(1.0)

    @property
    def _path(self) -> Path:
        return self.engine.places(self.job_id).parking

    def _stays(self, job: Job) -> bool:
        """Whether it has memory that drivers may break when they are asked to move it, so that they are not asked."""
        return job.lease is not None and any(use.stays for use in self.engine.enforcer.use(job.lease))

    def _refused(self, by: str) -> Stage:
        save_parking(self._path, Parking(by, Stage.REFUSED, reason=STAYS))
        return Stage.REFUSED

    def _stay_still(self, job: Job, parking: Parking | None, by: str) -> Stage:
        """Its memory stays where it is, or the driver moves it page by page."""
        is_late = self._is_held_for(QUIET_SECONDS)
        if not is_late and not self._is_quiet(job, time.monotonic()):
            return Stage.LEAVING
        return self._away(parking, Parking(by, Stage.AWAY, reason="" if parking is None else parking.reason))

    def _away(self, before: Parking | None, now: Parking) -> Stage:
        if before != now:
            save_parking(self._path, now)
            send_datagram(self.engine.places(now.by).wake_socket, b"")
        return Stage.AWAY

    def _forget(self, parking: Parking) -> None:
        """But never that it was refused: it would be again."""
        if not parking.reason:
            self._path.unlink(missing_ok=True)
        elif parking.stage is not Stage.REFUSED or (parking.by and not self._is_waited_for(parking.by)):
            save_parking(self._path, replace(parking, by="", stage=Stage.REFUSED))

    def _is_waited_for(self, by: str) -> bool:
        """Whether whoever was refused a place has not given up its grant yet."""
        with self.engine.ledger.view() as view:
            return any(entry.job.id == by for entry in view.holding())

    def _is_quiet(self, job: Job, now_seconds: float) -> bool:
        boards = [] if job.lease is None else self.engine.enforcer.boards(job.lease)
        ends = [board.in_flight_until_ns for board in boards]
        return all(end_ns == 0 or end_ns / _NANOSECONDS + _OVER_SECONDS < now_seconds for end_ns in ends)

    def there(self, job: Job, known: Sequence[Traveller] = ()) -> list[Traveller]:
        """Return the job's processes that hold memory of its GPU now; whoever was asked to leave before is one of them.

        Raises:
            PgpuError: The GPU cannot be read.
        """
        found, asked = [], {each.process for each in known}
        for part in job.lease.slices if job.lease is not None else ():
            for told in self.engine.gpus.processes(part.gpu_uuid):
                holder = identify_running(told.pid) if told.used_bytes != 0 else None
                if holder is not None and (holder in asked or self.owns(told.pid)):
                    found.append(Traveller(holder, told.used_bytes or 0))
        return found

    def _somebody_comes(self, job: Job, known: Sequence[Traveller]) -> bool:
        """Whether a process was about to make a context when the job was held, and is not on the GPU yet."""
        uses = [] if job.lease is None else self.engine.enforcer.use(job.lease)
        away_count = sum(is_alive(each.process) for each in known)
        if max((use.processes for use in uses), default=0) <= away_count:
            return False
        return not self._is_held_for(QUIET_SECONDS)

    def _is_held_for(self, seconds: float) -> bool:
        now_seconds = time.monotonic()
        if self._held_at_seconds is None:
            self._held_at_seconds = now_seconds
        return now_seconds - self._held_at_seconds >= seconds

    def _moving(self, job: Job) -> Mover:
        if self._mover is None:
            if self.engine.checkpoints is None:
                raise NodeError(f"job {job.id} left its GPU, and nothing here asks its driver to bring it back")
            self._mover = Mover(self.engine.checkpoints, self._path, lambda: self._free_bytes(job), self._wake)
        return self._mover

    def _free_bytes(self, job: Job) -> int:
        """Of the one GPU of its lease."""
        uuids = [part.gpu_uuid for part in job.lease.slices] if job.lease is not None else []
        gpu = next(each for each in self.engine.gpus.gpus() if each.uuid in uuids)
        return _free_of(gpu, self.engine.gpus.memory(gpu.uuid).used_bytes)

    def _wake(self) -> None:
        send_datagram(self.engine.places(self.job_id).wake_socket, b"")


def _free_of(gpu: Gpu, used_bytes: int) -> int:
    return max(0, gpu.memory_bytes - used_bytes)
