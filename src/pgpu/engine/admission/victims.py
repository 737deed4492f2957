"""Running jobs that make room for one of a higher priority: what that frees, and what it lends to that one alone.

Who is suspended keeps its claim: nobody but the job that took its place is granted what it left. It refuses to write: the
ledger says who is suspended, and each victim's supervisor sees to it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pgpu.engine.admission.snapshot import Snapshot
from pgpu.ledger import Entry
from pgpu.model import Job, JobState, SharingMode, Slice
from pgpu.scheduling import GpuRoom
from pgpu.scheduling.preemption import Victim

IsMovable = Callable[[Job], bool]
"""Tells whether all that a job holds of its GPU can go to the host."""


def never_movable(_job: Job) -> bool:
    """Have drivers that move no process."""
    return False


def find_victims(entries: Sequence[Entry], snapshot: Snapshot, leaves: IsMovable = never_movable) -> tuple[Victim, ...]:
    """Return every running job that could be suspended, and what that would free."""
    return tuple(
        Victim(
            entry.job.id,
            part.gpu_uuid,
            entry.job.request.priority,
            entry.job.lease.granted_at_seconds,
            _freed_bytes(entry.job, part, snapshot, leaves),
            part.compute_share or 0.0,
            entry.job.resumed_at_seconds,
        )
        for entry in entries
        if entry.job.lease is not None and _may_be_suspended(entry.job)
        for part in entry.job.lease.slices
    )


def _freed_bytes(job: Job, part: Slice, snapshot: Snapshot, leaves: IsMovable) -> int:
    """All of its slice where the whole job leaves, else what can be moved page by page."""
    return part.memory_bytes if leaves(job) else snapshot.movable_bytes(job.id, part)


def _may_be_suspended(job: Job) -> bool:
    is_alone = job.lease is not None and len(job.lease.slices) == 1 and job.lease.sharing is SharingMode.TIME_SLICE
    return is_alone and job.state is JobState.RUNNING and job.suspended_by is None and not job.is_aside


@dataclass(frozen=True, slots=True)
class Lent:
    """What suspended jobs of one GPU have left to those for which they were suspended."""

    memory_bytes: int = 0
    compute: float = 0.0


NOTHING = Lent()


def lent_capacity(
    entries: Sequence[Entry], snapshot: Snapshot, leaves: IsMovable = never_movable
) -> Mapping[str, Lent]:
    """Return by GPU what is counted twice: as the victims' and as that of the jobs that took their place."""
    holding = {entry.job.id: entry.job for entry in entries if entry.is_lease_held}
    found: dict[str, Lent] = {}
    for job_id in {entry.job.suspended_by for entry in entries if entry.job.suspended_by in holding}:
        lease = holding[str(job_id)].lease
        theirs = [entry.job for entry in entries if entry.job.suspended_by == job_id and entry.is_lease_held]
        for part in () if lease is None else lease.slices:
            parts = [(job, own) for job in theirs if job.lease for own in job.lease.slices]
            there = [(victim, own) for victim, own in parts if own.gpu_uuid == part.gpu_uuid]
            freed_bytes = sum(_freed_bytes(victim, own, snapshot, leaves) for victim, own in there)
            freed_compute = sum(own.compute_share or 0.0 for _, own in there)
            before = found.get(part.gpu_uuid, NOTHING)
            found[part.gpu_uuid] = Lent(
                before.memory_bytes + min(part.device_bytes, freed_bytes),
                before.compute + min(part.compute_share or 0.0, freed_compute),
            )
    return found


def without_lent(rooms: Sequence[GpuRoom], lent_by_gpu: Mapping[str, Lent]) -> tuple[GpuRoom, ...]:
    """Return the rooms with what is counted twice counted once."""
    return tuple(
        replace(
            room,
            granted_bytes=room.granted_bytes - lent_by_gpu[room.gpu.uuid].memory_bytes,
            granted_compute=room.granted_compute - lent_by_gpu[room.gpu.uuid].compute,
        )
        if room.gpu.uuid in lent_by_gpu
        else room
        for room in rooms
    )
