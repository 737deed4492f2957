"""Runs the turns of GPUs with jobs that hold more memory than fits: reads what the jobs do, holds them, and releases them.

There is no process for this alone: of the threads that supervise one GPU's oversubscribing jobs, the one that holds the GPU's
lock runs the turns, on its event loop. It polls every 20 ms while jobs take turns, every 250 ms while they might have to, else
once a second. `scheduling.gpu_turns` chooses the next job. The state is a file, from which another thread or agent continues
after a crash. Only jobs that oversubscribe are held, and only by the hold bit of turns.
"""

import contextlib
import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TypeVar

from pgpu.enforcement import Enforcer
from pgpu.enforcement.board import BoardGpu
from pgpu.enforcement.compute_word import ComputeWord, Hold
from pgpu.engine.admission.snapshot import HeldBytes
from pgpu.engine.context import EngineContext
from pgpu.engine.event_loop import EventLoop, Timer
from pgpu.engine.history.sharing_advice import swap_bytes_per_second
from pgpu.engine.leases.parking_state import Stage, load_parking
from pgpu.engine.settings import EngineSettings
from pgpu.engine.watch.gpu_time import GpuTime
from pgpu.errors import EnforcementError, PgpuBug, PgpuError
from pgpu.host.atomic_file import write_atomically
from pgpu.host.file_lock import try_lock
from pgpu.host.stderr_log import Complaints
from pgpu.ledger import Entry
from pgpu.model import Job, JobState, Lease
from pgpu.scheduling.gpu_turns import NO_TURNS, Contender, TurnState, advance
from pgpu.structs import DecodeError, JsonDecoder, Struct, encode_json, field, replace

TURN_SECONDS = 0.02
"""Polling interval while jobs take turns; the GPU is idle for about as long at each change."""

WATCH_SECONDS = 0.25
"""Polling interval while all jobs run and together hold more than fits."""

MEASURE_SECONDS = 0.25
"""Shortest time between two readings of what jobs hold, which take longer than reading what they do."""

_NANOSECONDS = 1e9
_DRAINED_SECONDS = 1.0
"""Work counts as finished so long after its expected end, even if the job has not polled it."""

_LATELY_SECONDS = 0.05
"""A job that works without pause may have nothing in flight for a moment between two launches."""

_TURNS = JsonDecoder(TurnState)
_Value = TypeVar("_Value")


# The state file of each GPU: for the next holder of the lock, and for reports. Only the holder of the lock writes it,
# atomically; an unreadable file counts as none.


class TurnPaths(Struct, frozen=True):
    """Files of one GPU's turns, in the runtime directory."""

    lock: Path
    """Held by the one thread that runs the turns."""

    state: Path


def turn_paths(settings: EngineSettings, gpu_uuid: str) -> TurnPaths:
    """Return the files of one GPU's turns."""
    directory = settings.runtime_directory / "turns"
    return TurnPaths(directory / f"{gpu_uuid}.lock", directory / f"{gpu_uuid}.json")


def save_turns(path: Path, turns: TurnState) -> None:
    """Write the state.

    Raises:
        OSError: It cannot be written.
    """
    write_atomically(path, encode_json(turns), 0o600)


def load_turns(path: Path) -> TurnState:
    """Return the last state; `NO_TURNS` if it cannot be read."""
    try:
        return _TURNS.decode(path.read_bytes())
    except (OSError, DecodeError):
        return NO_TURNS


def add_turn(settings: EngineSettings, job_id: str, use: GpuTime) -> GpuTime:
    """Return a job's time on a GPU with its turn there, which is newer than the last sample; unchanged where all jobs run."""
    turns = load_turns(turn_paths(settings, use.gpu_uuid).state)
    if not turns.is_on:
        return use
    if job_id not in turns.holders:
        return replace(use, is_held=True, turn_since_seconds=None, turn_until_seconds=None)
    # Turns are measured by the monotonic clock, reports show wall time.
    since, until = (at + time.time() - time.monotonic() for at in (turns.since_seconds, turns.until_seconds))
    return replace(use, is_held=False, turn_since_seconds=since, turn_until_seconds=until)


# The turns themselves.


class Arbiter:
    """The part of one job's thread in the turns of the job's GPUs."""

    def __init__(self, context: EngineContext, loop: EventLoop, job: Job) -> None:
        self._context = context
        self._job = job
        parts = job.lease.slices if job.lease is not None and job.request.oversubscribes else ()
        self._gpus = [_GpuTurns(context, loop, part.gpu_uuid) for part in parts]

    def tick(self) -> None:
        """Take the locks that are free, and start a new reading of the jobs on their GPUs; called about once a second.

        Raises:
            NodeError: The ledger or a GPU cannot be read.
        """
        context = self._context
        if not context.settings.has_turns:
            for each in self._gpus:
                each.release_leftover(self._job)
            return
        owned = [each for each in self._gpus if each.take_lock()]
        if not owned:
            return
        with context.ledger.view() as view:
            entries = context.queue_of(view.holding())
        snapshot = context.snapshot()
        rooms = {room.gpu.uuid: room for room in snapshot.rooms(entries, context.headroom)}
        jobs = paged_jobs(entries)
        away = [entry.job.id for entry in entries if self._is_away(entry.job)]
        for each in owned:
            room = rooms.get(each.gpu_uuid)
            capacity_bytes = 0 if room is None else room.capacity_bytes
            left_bytes = capacity_bytes - device_only_bytes(entries, each.gpu_uuid, snapshot.staying_bytes, away)
            speed = None if room is None else swap_bytes_per_second(context.ledger, room.gpu)
            each.restart(jobs.get(each.gpu_uuid, []), left_bytes, speed)

    def _is_away(self, job: Job) -> bool:
        if job.suspended_by is None:
            return False
        parking = load_parking(self._context.places(job.id).parking)
        return parking is not None and parking.by == job.suspended_by and parking.stage is Stage.AWAY

    def close(self) -> None:
        """Release the locks, so that another thread takes them."""
        for each in self._gpus:
            each.close()


class TurnMeasurement(Struct, frozen=True):
    """What changes seldom of one job on one GPU."""

    set_bytes: int
    """Memory that it holds and that could be moved to the host."""

    stays_bytes: int
    """Memory that it holds and that could not."""

    word: ComputeWord | None
    """Of its limit file; None where it has none yet."""


class _GpuTurns(Struct):
    """The turns of one GPU, while this process holds its lock."""

    context: EngineContext
    loop: EventLoop
    gpu_uuid: str
    _lock: int | None = None
    _turns: TurnState = NO_TURNS
    _jobs: Sequence[Job] = ()
    _left_bytes: int = 0
    """Memory that jobs which do not oversubscribe leave of the GPU."""

    _bytes_per_second: float | None = None
    """Rate at which memory moves to and from this GPU; None if unknown."""

    _held_at_seconds: dict[str, float] = field(default_factory=dict)
    """Since when jobs are held, monotonic, by id; missing for a job that is not, or if that is unknown."""

    _measured: dict[str, TurnMeasurement] = field(default_factory=dict)
    _measured_at_seconds: float = float("-inf")
    _timer: Timer | None = None
    _complaints: Complaints = field(default_factory=Complaints)

    @property
    def _paths(self) -> TurnPaths:
        return turn_paths(self.context.settings, self.gpu_uuid)

    def take_lock(self) -> bool:
        """Take the GPU's lock if it is free, and read the state of the last holder; True while this process holds it."""
        if self._lock is None:
            # The kernel releases the lock when its holder ends, however it ends. This process continues from the last
            # state.
            self._lock = try_lock(self._paths.lock)
            self._turns = NO_TURNS if self._lock is None else load_turns(self._paths.state)
        return self._lock is not None

    def release_leftover(self, job: Job) -> None:
        """Release a job that turns held before they were switched off, unless another process still runs them.

        Raises:
            EnforcementError: The slice cannot be read or written.
        """
        at, lease = _find_slice(job, self.gpu_uuid)
        word = _value_at(self.context.enforcer.words(lease), at)
        # A process with older settings may still hold the lock, and would set the bit again.
        if word is None or not word.holds & Hold.TURNS or not self.take_lock():
            return
        try:
            self.context.enforcer.hold(lease, self.gpu_uuid, Hold.TURNS, is_held=False)
        finally:
            self.close()

    def restart(self, jobs: Sequence[Job], left_bytes: int, bytes_per_second: float | None) -> None:
        """Run the turns now with new values, and on while there is anything to do."""
        self._jobs, self._left_bytes, self._bytes_per_second = jobs, left_bytes, bytes_per_second
        self._measured_at_seconds = float("-inf")
        if self._timer is not None:
            self._timer.cancel()
        self._run()

    def close(self) -> None:
        """Release the lock. Held jobs stay held until the next holder of the lock reads the state."""
        if self._timer is not None:
            self._timer.cancel()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _run(self) -> None:
        now_seconds = self.loop.now_seconds()
        if now_seconds - self._measured_at_seconds >= MEASURE_SECONDS:
            self._measured_at_seconds = now_seconds
            self._measured = {}
            for job in self._jobs:
                with contextlib.suppress(EnforcementError):  # it has ended, or is read again next time
                    self._measured[job.id] = _measure(self.context.enforcer, job, self.gpu_uuid)
        contenders = []
        for job in self._jobs:
            if (measured := self._measured.get(job.id)) is not None:
                with contextlib.suppress(EnforcementError):
                    contenders.append(self._contender(job, measured, now_seconds))
        room_bytes = max(0, self._left_bytes - sum(each.stays_bytes for each in self._measured.values()))
        before, rules = self._turns, self.context.settings.turns
        if self._bytes_per_second is not None:
            rules = replace(rules, bytes_per_second=self._bytes_per_second)
        self._turns = advance(before, contenders, room_bytes, now_seconds, rules)
        # Holds before the state: after a crash between the two the next holder compares each bit with the state it
        # reads.
        for job in self._jobs:
            self._set_hold(job, now_seconds)
        if self._turns != before:
            try:
                save_turns(self._paths.state, self._turns)
            except OSError as exc:
                self._complaints.say(f"turns: {self._paths.state} cannot be written: {exc.strerror}")
        is_crowded = sum(each.set_bytes for each in contenders) > room_bytes
        if not (self._turns.is_on or is_crowded):
            self._timer = None
            return
        # With many jobs a reading takes long; a longer pause keeps it at a fifth of a core.
        pause_seconds = TURN_SECONDS if self._turns.is_on else WATCH_SECONDS
        took_seconds = self.loop.now_seconds() - now_seconds
        self._timer = self.loop.call_later(max(pause_seconds, 4 * took_seconds), self._run)

    def _contender(self, job: Job, measured: TurnMeasurement, now_seconds: float) -> Contender:
        """Return what a job does on the GPU now.

        The board is written by the job. False values cost turns, its own and others', and give it no memory.

        Args:
            job: With a lease.
            measured: Of it, recently.
            now_seconds: Monotonic.
        """
        at, lease = _find_slice(job, self.gpu_uuid)
        board = _value_at(self.context.enforcer.boards(lease), at)
        activity = _activity(board, measured.word, self._held_at_seconds.get(job.id), now_seconds)
        has_work, wanted_at_seconds, is_quiet = activity if job.state is JobState.RUNNING else _STILL
        return Contender(
            job.id, measured.set_bytes, has_work, wanted_at_seconds, is_quiet=is_quiet, priority=job.request.priority
        )

    def _set_hold(self, job: Job, now_seconds: float) -> None:
        is_held = not self._turns.may_run(job.id)
        if not is_held:
            self._held_at_seconds.pop(job.id, None)
        measured = self._measured.get(job.id)
        if measured is None or measured.word is None or job.lease is None:
            return
        if bool(measured.word.holds & Hold.TURNS) == is_held:
            return
        if is_held:
            self._held_at_seconds[job.id] = now_seconds
        try:
            # A bit in the limit file, which the shim of each process checks before a launch.
            self.context.enforcer.hold(job.lease, self.gpu_uuid, Hold.TURNS, is_held=is_held)
        except PgpuError as exc:
            self._complaints.say(f"turns: job {job.id} could not be {'held' if is_held else 'released'}: {exc}")
            return
        self._measured[job.id] = replace(measured, word=measured.word.with_hold(Hold.TURNS, is_held=is_held))


def paged_jobs(entries: Sequence[Entry]) -> dict[str, list[Job]]:
    """Return the running jobs that oversubscribe, oldest first, by the UUID of their GPU; without suspended ones."""
    found: dict[str, list[Job]] = {}
    for entry in entries:
        job = entry.job
        if (
            job.suspended_by is None
            and job.request.oversubscribes
            and job.lease is not None
            and entry.is_lease_held
            and not job.state.is_final
        ):
            for part in job.lease.slices:
                found.setdefault(part.gpu_uuid, []).append(job)
    return found


def device_only_bytes(
    entries: Sequence[Entry], gpu_uuid: str, staying_bytes: HeldBytes, away: Collection[str] = ()
) -> int:
    """Return the GPU memory of jobs that take no turns: whole slices, and of suspended oversubscribing jobs what stays.

    A job that left as a whole takes nothing while another job is in its place. After that its place is kept free, or the
    paging jobs would fill it before it is back.

    Args:
        entries: Every job that holds a lease.
        gpu_uuid: Of the GPU.
        staying_bytes: Memory of suspended oversubscribing jobs that cannot be moved.
        away: Ids of suspended jobs that are off the GPU, or still on it with nothing in flight.
    """
    there = {entry.job.id for entry in entries if entry.is_lease_held}
    found = 0
    for entry in entries:
        job = entry.job
        parts = job.lease.slices if job.lease is not None and entry.is_counted else ()
        has_left = job.id in away and job.suspended_by in there
        for part in (part for part in parts if part.gpu_uuid == gpu_uuid):
            if not job.request.oversubscribes:
                found += 0 if has_left else part.memory_bytes
            elif job.suspended_by is not None:
                found += staying_bytes.get((job.id, gpu_uuid), 0)
    return found


def _measure(enforcer: Enforcer, job: Job, gpu_uuid: str) -> TurnMeasurement:
    at, lease = _find_slice(job, gpu_uuid)
    use, word = _value_at(enforcer.use(lease), at), _value_at(enforcer.words(lease), at)
    if use is None:
        return TurnMeasurement(0, 0, word)
    stays_bytes = use.used_bytes if use.resident_bytes is None else use.resident_bytes
    return TurnMeasurement(use.used_bytes - stays_bytes, stays_bytes, word)


def _find_slice(job: Job, gpu_uuid: str) -> tuple[int, Lease]:
    if job.lease is None:
        raise PgpuBug(f"job {job.id} has no lease to look at")
    return [part.gpu_uuid for part in job.lease.slices].index(gpu_uuid), job.lease


def _value_at(values: Sequence[_Value], at: int) -> _Value | None:
    # There is no value before the slice is made, or before the job has used the GPU.
    return values[at] if at < len(values) else None


_Activity = tuple[bool, float | None, bool]
_STILL: _Activity = (False, None, True)
"""Of a job without processes on the GPU."""


def _activity(
    board: BoardGpu | None, word: ComputeWord | None, held_at_seconds: float | None, now_seconds: float
) -> _Activity:
    """Return whether a job has work for the GPU, when it last had, and whether nothing of it is in flight."""
    if board is None or word is None or board.wanted_ns == 0:
        return _STILL
    wanted_at_seconds = board.wanted_ns / _NANOSECONDS
    if not word.is_held:
        is_busy = board.in_flight_until_ns != 0
        return is_busy or now_seconds - wanted_at_seconds < _LATELY_SECONDS, wanted_at_seconds, not is_busy
    # A job that exits or no longer polls leaves its last value: it counts as finished a second after that.
    end_ns = board.in_flight_until_ns
    is_quiet = end_ns == 0 or end_ns / _NANOSECONDS + _DRAINED_SECONDS < now_seconds
    # A held job writes that it wants to launch once, and then waits.
    is_waiting = held_at_seconds is None or wanted_at_seconds >= held_at_seconds
    return is_waiting, now_seconds if is_waiting else wanted_at_seconds, is_quiet
