"""Which running jobs are suspended for a waiting one of a higher priority that asked for that.

Of a suspended job the GPU does no work, and what of its memory can be moved to the host makes room there; it keeps its claim
to both and goes on when whoever took its place has ended. It refuses to suspend anybody in vain, or for an equal, and one
that has just come back.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from pgpu.model import SharingMode, SharingWish, Slice
from pgpu.scheduling.admission_round import Admission, Cause, Grant, Wait
from pgpu.scheduling.candidate import Candidate
from pgpu.scheduling.capacity import GpuRoom
from pgpu.scheduling.tenancy import IDLE

REARM_SECONDS = 60.0
"""So long after a job went on it is not suspended again: two jobs that chase each other would only move memory."""

_ROOM = {Cause.MEMORY, Cause.COMPUTE, Cause.TURN}


@dataclass(frozen=True, slots=True)
class Victim:
    """A running job on one GPU, as far as suspending it goes."""

    job_id: str
    gpu_uuid: str
    priority: int
    granted_at_seconds: float
    frees_bytes: int
    """What it holds of the GPU for good, less what cannot be moved to the host."""

    frees_compute: float = 0.0
    resumed_at_seconds: float | None = None
    """When it went on after it had been suspended; None if it never was."""

    def lost(self, now_seconds: float) -> float:
        """Memory times the time that it has run: what is put off by suspending it."""
        return self.frees_bytes * (now_seconds - self.granted_at_seconds)


def preempt(
    admission: Admission,
    queue: Sequence[Candidate],
    rooms: Sequence[GpuRoom],
    victims: Sequence[Victim],
    now_seconds: float,
) -> Admission:
    """Let the first who may preempt start, if suspending others makes room for it.

    Pure. One job in a round: the next round sees what came of it.

    Args:
        admission: What was decided without anybody being suspended.
        queue: The candidates that it was decided of.
        rooms: The GPUs that it was decided on.
        victims: Every job that might be suspended.
        now_seconds: Seconds since the epoch.

    Returns:
        The same where nobody is suspended.
    """
    asking = {each.job_id: each for each in queue if each.request.preempts}
    if not asking or not victims:
        return admission
    free = _left(rooms, admission.grants)
    for wait in admission.waits:
        candidate = asking.get(wait.job_id)
        found = None if candidate is None or wait.cause not in _ROOM else _place(candidate, free, victims, now_seconds)
        if candidate is not None and found is not None:
            return _suspending(admission, wait, candidate, *found)
    return admission


@dataclass(frozen=True, slots=True)
class _Free:
    room: GpuRoom
    memory_bytes: int
    compute: float


def _left(rooms: Sequence[GpuRoom], grants: Iterable[Grant]) -> list[_Free]:
    """What the round before has left on each GPU, and of GPUs whose jobs share them in turns."""
    parts = list(chain.from_iterable(grant.slices for grant in grants))
    found = []
    for room in rooms:
        if room.tenancy == IDLE or room.tenancy.mode is not SharingMode.TIME_SLICE or room.gpu.is_instance:
            continue
        taken = [part for part in parts if part.gpu_uuid == room.gpu.uuid]
        memory_bytes = room.capacity_bytes - room.granted_bytes - sum(part.memory_bytes for part in taken)
        compute = 1.0 - room.granted_compute - sum(part.compute_share or 0.0 for part in taken)
        found.append(_Free(room, memory_bytes, compute))
    return found


def _place(
    candidate: Candidate, free: Sequence[_Free], victims: Sequence[Victim], now_seconds: float
) -> tuple[GpuRoom, tuple[str, ...]] | None:
    """The GPU on which least is lost, and who is suspended there."""
    request = candidate.request
    if request.gpu_count != 1 or request.sharing not in {SharingWish.TIME_SLICE, SharingWish.AUTO}:
        return None
    found = []
    for each in (each for each in free if candidate.can_use(each.room.gpu)):
        there = [victim for victim in victims if victim.gpu_uuid == each.room.gpu.uuid]
        chosen = _chosen(candidate, each, there, now_seconds)
        if chosen:
            lost = sum(victim.lost(now_seconds) for victim in chosen)
            key = (max(victim.priority for victim in chosen), lost, each.room.gpu.index)
            found.append((key, each.room, tuple(victim.job_id for victim in chosen)))
    return min(found, key=lambda each: each[0])[1:] if found else None


def _chosen(candidate: Candidate, free: _Free, victims: Sequence[Victim], now_seconds: float) -> list[Victim]:
    """As few as make room: those of the lowest priority, of these the youngest, first. Nobody where all are not enough."""
    may = [victim for victim in victims if _may_suspend(victim, candidate, now_seconds)]
    may.sort(key=lambda each: (each.priority, -each.granted_at_seconds, each.lost(now_seconds), each.job_id))
    chosen: list[Victim] = []
    for victim in may:
        if _has_room(candidate, free, chosen):
            break
        chosen.append(victim)
    if not _has_room(candidate, free, chosen):
        return []
    for victim in reversed(chosen.copy()):
        rest = [each for each in chosen if each is not victim]
        if _has_room(candidate, free, rest):
            chosen = rest
    return chosen


def _may_suspend(victim: Victim, candidate: Candidate, now_seconds: float) -> bool:
    is_settled = victim.resumed_at_seconds is None or now_seconds - victim.resumed_at_seconds >= REARM_SECONDS
    return victim.priority < candidate.request.priority and is_settled


def _has_room(candidate: Candidate, free: _Free, chosen: Sequence[Victim]) -> bool:
    memory_bytes = free.memory_bytes + sum(victim.frees_bytes for victim in chosen)
    compute = free.compute + sum(victim.frees_compute for victim in chosen)
    wanted = candidate.request.compute_share or 0.0
    return candidate.request.memory_bytes <= memory_bytes and wanted <= compute + 1e-9


def _suspending(
    admission: Admission, wait: Wait, candidate: Candidate, room: GpuRoom, job_ids: tuple[str, ...]
) -> Admission:
    request = candidate.request
    part = Slice(room.gpu.uuid, request.memory_bytes, request.compute_share)
    return replace(
        admission,
        grants=(*admission.grants, Grant(candidate.job_id, (part,))),
        waits=[each for each in admission.waits if each.job_id != wait.job_id],
        suspended=tuple((job_id, candidate.job_id) for job_id in job_ids),
    )
