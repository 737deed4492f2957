"""What the jobs that oversubscribe one GPU do now, as `scheduling.turns` asks for it.

What a job says of itself on its board it may say wrongly: that costs turns, its own and others', and gives it no memory.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pgpu.enforcement import Enforcer
from pgpu.enforcement.board import BoardGpu
from pgpu.enforcement.compute_word import ComputeWord
from pgpu.engine.admission.snapshot import HeldBytes
from pgpu.errors import PgpuBug
from pgpu.ledger import Entry
from pgpu.model import Job, JobState, Lease
from pgpu.scheduling.gpu_turns import Contender

_NANOSECONDS = 1e9
_DRAINED_SECONDS = 1.0
"""What should have been over for so long is over, though the job has not looked."""

_LATELY_SECONDS = 0.05
"""Between two launches of a job that works without a pause nothing may be in flight for a moment."""


_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class TurnMeasurement:
    """What changes seldom of one job on one GPU."""

    set_bytes: int
    """What it holds that could be moved to the host."""

    stays_bytes: int
    """What it holds that could not."""

    word: ComputeWord | None
    """As its limit file says; None where it has none yet."""


def paged_jobs(entries: Sequence[Entry]) -> dict[str, list[Job]]:
    """Return the jobs that run and oversubscribe, oldest first, by the UUID of their GPU; not those that are suspended."""
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
    """Return what of a GPU the jobs take that take no turns there: all slices of most, of suspended ones what stays.

    A job that left as a whole takes nothing while somebody has its place; once nobody has, its place is kept for it again,
    or those who page beside it would fill it before it is back.

    Args:
        entries: Of all that hold a lease.
        gpu_uuid: Which GPU.
        staying_bytes: What cannot be moved of suspended jobs that oversubscribe.
        away: Ids of suspended jobs that are off the GPU, or hold still there.
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


@dataclass(frozen=True, slots=True)
class TurnObserver:
    """Looks at the jobs on one GPU."""

    enforcer: Enforcer
    gpu_uuid: str

    def measure(self, job: Job) -> TurnMeasurement:
        """Return what a job holds there, and what its limit says of compute.

        Raises:
            EnforcementError: A file of the slice cannot be read.
        """
        at, lease = _place(job, self.gpu_uuid)
        use, word = _part(self.enforcer.use(lease), at), self.word(job)
        if use is None:
            return TurnMeasurement(0, 0, word)
        stays_bytes = use.used_bytes if use.resident_bytes is None else use.resident_bytes
        return TurnMeasurement(use.used_bytes - stays_bytes, stays_bytes, word)

    def word(self, job: Job) -> ComputeWord | None:
        """Return what a job's limit says of compute there; None before it has one.

        Raises:
            EnforcementError: The limit file cannot be read.
        """
        at, lease = _place(job, self.gpu_uuid)
        return _part(self.enforcer.words(lease), at)

    def see(self, job: Job, measured: TurnMeasurement, held_at_seconds: float | None, now_seconds: float) -> Contender:
        """Return what a job does there now.

        Args:
            job: With a lease.
            measured: Of it, not long ago.
            held_at_seconds: Since when it is held, on the monotonic clock; None if it is not, or nobody knows.
            now_seconds: On the same clock.

        Raises:
            EnforcementError: Its board cannot be read.
        """
        at, lease = _place(job, self.gpu_uuid)
        seen = _seen(_part(self.enforcer.boards(lease), at), measured.word, held_at_seconds, now_seconds)
        is_wanting, wanted_at_seconds, is_quiet = seen if job.state is JobState.RUNNING else _STILL
        return Contender(
            job.id, measured.set_bytes, is_wanting, wanted_at_seconds, is_quiet=is_quiet, priority=job.request.priority
        )


def _place(job: Job, gpu_uuid: str) -> tuple[int, Lease]:
    if job.lease is None:
        raise PgpuBug(f"job {job.id} has no lease to look at")
    return [part.gpu_uuid for part in job.lease.slices].index(gpu_uuid), job.lease


def _part(values: Sequence[_Value], at: int) -> _Value | None:
    """Nothing of a slice that is not made yet, or whose job has not begun to use the GPU."""
    return values[at] if at < len(values) else None


def _has_drained(board: BoardGpu, now_seconds: float) -> bool:
    """Whether nothing is in flight of any process, or should have been over for long in one that looks no more."""
    return board.in_flight_until_ns == 0 or board.in_flight_until_ns / _NANOSECONDS + _DRAINED_SECONDS < now_seconds


_Seen = tuple[bool, float | None, bool]
_STILL: _Seen = (False, None, True)
"""Of a job none of whose processes uses the GPU."""


def _seen(board: BoardGpu | None, word: ComputeWord | None, held_at_seconds: float | None, now_seconds: float) -> _Seen:
    """Return whether it wants the GPU, when it last did, and whether nothing of it is in flight."""
    if board is None or word is None or board.wanted_ns == 0:
        return _STILL
    wanted_at_seconds = board.wanted_ns / _NANOSECONDS
    if not word.is_held:
        is_busy = board.in_flight_until_ns != 0
        return is_busy or now_seconds - wanted_at_seconds < _LATELY_SECONDS, wanted_at_seconds, not is_busy
    is_quiet = _has_drained(board, now_seconds)
    # Who is held and wants to launch says so once, and then waits.
    is_waiting = held_at_seconds is None or wanted_at_seconds >= held_at_seconds
    return is_waiting, now_seconds if is_waiting else wanted_at_seconds, is_quiet
