"""Does the turns of one GPU, as long as this process holds that GPU's lock.

Between looks it sleeps: tens of milliseconds while jobs take turns, a quarter of a second while they could come to need
them, else it looks when its supervisor does. Whoever takes its place after a crash reads how turns stood, and lets everybody
go on whom the rules do not hold. Where turns are switched off, each supervisor lets its own job go on once nobody does them
any more. It refuses to hold any job that does not oversubscribe, and leaves the holds of others alone.
"""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pgpu.enforcement.compute_word import Hold
from pgpu.engine.engine import Engine
from pgpu.engine.history.link_bandwidths import swap_bytes_per_second
from pgpu.engine.parking.parking_state import Stage, load_parking
from pgpu.engine.process.event_loop import EventLoop, Timer
from pgpu.engine.turns.observation import TurnMeasurement, TurnObserver, device_only_bytes, paged_jobs
from pgpu.engine.turns.turn_state import TurnPaths, load_turns, save_turns, turn_paths
from pgpu.errors import EnforcementError, PgpuError
from pgpu.host.file_lock import try_lock
from pgpu.host.stderr_log import Complaints
from pgpu.model import Job
from pgpu.scheduling.gpu_turns import NO_TURNS, Contender, TurnRules, TurnState, advance

TURN_SECONDS = 0.02
"""Between looks while jobs take turns: the GPU stands idle about so long at each change."""

WATCH_SECONDS = 0.25
"""Between looks while everybody runs and all together hold more than fits."""

MEASURE_SECONDS = 0.25
"""What jobs hold is read at most so often: it takes longer than seeing what they do."""


class Arbiter:
    """One supervisor's part in the turns of its job's GPU."""

    def __init__(self, engine: Engine, loop: EventLoop, job: Job) -> None:
        """Do nothing until `tick`."""
        self._engine = engine
        self._loop = loop
        self._job = job
        parts = job.lease.slices if job.lease is not None and job.request.oversubscribes else ()
        self._duties = [_Duty(engine, loop, part.gpu_uuid) for part in parts]

    def tick(self) -> None:
        """Take the duty where nobody has it, and see who is there; called about once a second.

        Raises:
            NodeError: The ledger or a GPU cannot be read.
        """
        if not self._engine.settings.has_turns:
            for duty in self._duties:
                duty.let_go_of_what_is_left(self._job)
            return
        taken = [duty for duty in self._duties if duty.is_taken()]
        if not taken:
            return
        with self._engine.ledger.view() as view:
            entries = self._engine.queue_of(view.holding())
        snapshot = self._engine.snapshot()
        rooms = {room.gpu.uuid: room for room in snapshot.rooms(entries, self._engine.headroom)}
        jobs = paged_jobs(entries)
        away = [entry.job.id for entry in entries if self._is_away(entry.job)]
        for duty in taken:
            room = rooms.get(duty.gpu_uuid)
            capacity_bytes = 0 if room is None else room.capacity_bytes
            left_bytes = capacity_bytes - device_only_bytes(entries, duty.gpu_uuid, snapshot.staying_bytes, away)
            speed = None if room is None else swap_bytes_per_second(self._engine, room.gpu)
            duty.see(jobs.get(duty.gpu_uuid, []), left_bytes, speed)

    def _is_away(self, job: Job) -> bool:
        """Whether a suspended job has left the GPU as a whole and has not been let go on."""
        if job.suspended_by is None:
            return False
        parking = load_parking(self._engine.places(job.id).parking)
        return parking is not None and parking.by == job.suspended_by and parking.stage is Stage.AWAY

    def close(self) -> None:
        """Leave the duty to somebody else."""
        for duty in self._duties:
            duty.close()


@dataclass(slots=True)
class _Duty:
    """The turns of one GPU, while this process does them."""

    engine: Engine
    loop: EventLoop
    gpu_uuid: str
    _lock: int | None = None
    _turns: TurnState = NO_TURNS
    _jobs: Sequence[Job] = ()
    _left_bytes: int = 0
    """What jobs that do not oversubscribe leave of the GPU."""

    _bytes_per_second: float | None = None
    """At which memory moves to and from this GPU; None is not known."""

    _held_at_seconds: dict[str, float] = field(default_factory=dict)
    _measured: dict[str, TurnMeasurement] = field(default_factory=dict)
    _measured_at_seconds: float = float("-inf")
    _timer: Timer | None = None
    _complaints: Complaints = field(default_factory=Complaints)

    @property
    def _eye(self) -> TurnObserver:
        return TurnObserver(self.engine.enforcer, self.gpu_uuid)

    @property
    def _places(self) -> TurnPaths:
        return turn_paths(self.engine.settings, self.gpu_uuid)

    @property
    def _rules(self) -> TurnRules:
        rules = self.engine.settings.turns
        return rules if self._bytes_per_second is None else replace(rules, bytes_per_second=self._bytes_per_second)

    def is_taken(self) -> bool:
        """Whether this process has the duty, which it takes if nobody has it."""
        if self._lock is None:
            self._lock = try_lock(self._places.lock)
            self._turns = NO_TURNS if self._lock is None else load_turns(self._places.standing)
        return self._lock is not None

    def let_go_of_what_is_left(self, job: Job) -> None:
        """Let a job go on that turns held, unless somebody still does them.

        Raises:
            EnforcementError: The slice cannot be read or written.
        """
        word = self._eye.word(job)
        if word is None or job.lease is None or not word.holds & Hold.TURNS or not self.is_taken():
            return
        try:
            self.engine.enforcer.hold(job.lease, self.gpu_uuid, Hold.TURNS, is_held=False)
        finally:
            self.close()

    def see(self, jobs: Sequence[Job], left_bytes: int, bytes_per_second: float | None) -> None:
        """Look now, and on while there is anything to look for."""
        self._jobs, self._left_bytes, self._bytes_per_second = jobs, left_bytes, bytes_per_second
        self._measured_at_seconds = float("-inf")
        if self._timer is not None:
            self._timer.cancel()
        self._look()

    def close(self) -> None:
        """Let go of the lock; whom the turns hold, the next on duty lets go on."""
        if self._timer is not None:
            self._timer.cancel()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _look(self) -> None:
        now_seconds = self.loop.now_seconds()
        if now_seconds - self._measured_at_seconds >= MEASURE_SECONDS:
            self._measure(now_seconds)
        contenders = self._contenders(now_seconds)
        stays_bytes = sum(each.stays_bytes for each in self._measured.values())
        room_bytes = max(0, self._left_bytes - stays_bytes)
        before = self._turns
        self._turns = advance(before, contenders, room_bytes, now_seconds, self._rules)
        for job in self._jobs:
            self._apply(job, now_seconds)
        if self._turns != before:
            self._save()
        is_crowded = sum(each.set_bytes for each in contenders) > room_bytes
        self._look_again(now_seconds, WATCH_SECONDS if is_crowded else None)

    def _look_again(self, now_seconds: float, watch_seconds: float | None) -> None:
        """Where looking takes long, because of many jobs, less often: a fifth of a processor at most."""
        pause_seconds = TURN_SECONDS if self._turns.is_on else watch_seconds
        if pause_seconds is None:
            self._timer = None
            return
        took_seconds = self.loop.now_seconds() - now_seconds
        self._timer = self.loop.call_later(max(pause_seconds, 4 * took_seconds), self._look)

    def _measure(self, now_seconds: float) -> None:
        """Who cannot be looked at is gone, or will be seen again."""
        self._measured_at_seconds = now_seconds
        found = {}
        for job in self._jobs:
            with contextlib.suppress(EnforcementError):
                found[job.id] = self._eye.measure(job)
        self._measured = found

    def _contenders(self, now_seconds: float) -> list[Contender]:
        found = []
        for job in self._jobs:
            if (measured := self._measured.get(job.id)) is not None:
                held_at_seconds = self._held_at_seconds.get(job.id)
                with contextlib.suppress(EnforcementError):
                    found.append(self._eye.see(job, measured, held_at_seconds, now_seconds))
        return found

    def _apply(self, job: Job, now_seconds: float) -> None:
        """Hold a job, or let it go on, unless it is so already."""
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
            self.engine.enforcer.hold(job.lease, self.gpu_uuid, Hold.TURNS, is_held=is_held)
        except PgpuError as exc:
            self._complaints.say(f"turns: job {job.id} could not be {'held' if is_held else 'let go on'}: {exc}")
            return
        self._measured[job.id] = replace(measured, word=measured.word.with_hold(Hold.TURNS, is_held=is_held))

    def _save(self) -> None:
        try:
            save_turns(self._places.standing, self._turns)
        except OSError as exc:
            self._complaints.say(f"turns: {self._places.standing} cannot be written: {exc.strerror}")
