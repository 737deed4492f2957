"""Who starts now: first come, first served, by memory.

The head of the queue holds back all behind it, so that nobody starves and nothing is granted past the memory that is
really there. It refuses to know what a job does: memory is all it looks at.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pgpu.model import Request, Slice
from pgpu.scheduling.capacity import GpuRoom, taken_bytes, usable
from pgpu.units import format_memory


@dataclass(frozen=True, slots=True)
class Candidate:
    """One waiting job."""

    job_id: str
    request: Request
    deadline_seconds: float | None = None
    """When its wait runs out, in seconds since the epoch; None for never."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A job that starts now."""

    job_id: str
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """A job that waits, and why, in one line for people."""

    job_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Admission:
    """One answer for each candidate."""

    grants: tuple[Grant, ...]
    waits: tuple[Wait, ...]
    expired: tuple[str, ...]
    """Ids of the jobs that could not start before their wait ran out."""


def admit(rooms: Sequence[GpuRoom], queue: Sequence[Candidate], now_seconds: float) -> Admission:
    """Decide which waiting requests start now, and on which GPUs.

    Pure: the same arguments always give the same answer. A job on one GPU gets the smallest free MIG instance that covers
    it, whole; where there is none, GPUs are tried in order, first fit. One job's are distinct. A job whose wait has run out
    still starts if it fits now.

    Args:
        rooms: Every GPU and MIG instance, in NVML index order.
        queue: Waiting requests, oldest first.
        now_seconds: Seconds since the epoch.
    """
    granted_bytes = {room.gpu.uuid: room.granted_bytes for room in rooms}
    gpus = {room.gpu.uuid: room.gpu for room in rooms}
    grants: list[Grant] = []
    waits: list[Wait] = []
    expired: list[str] = []
    for candidate in queue:
        slices = None if waits else _best_fit(rooms, granted_bytes, candidate.request)
        if slices is not None:
            grants.append(Grant(candidate.job_id, slices))
            for part in slices:
                granted_bytes[part.gpu_uuid] += taken_bytes(gpus[part.gpu_uuid], part.memory_bytes)
        elif candidate.deadline_seconds is not None and candidate.deadline_seconds <= now_seconds:
            expired.append(candidate.job_id)
        else:
            waits.append(Wait(candidate.job_id, _reason(rooms, granted_bytes, candidate.request, len(waits))))
    return Admission(tuple(grants), tuple(waits), tuple(expired))


def _best_fit(rooms: Sequence[GpuRoom], granted_bytes: dict[str, int], request: Request) -> tuple[Slice, ...] | None:
    fitting = [room.gpu for room in _usable(rooms, request) if _free(room, granted_bytes) >= request.memory_bytes]
    if len(fitting) < request.gpu_count:
        return None
    fitting.sort(key=lambda gpu: (not gpu.is_instance, gpu.memory_bytes if gpu.is_instance else 0))
    return tuple(Slice(gpu.uuid, request.memory_bytes) for gpu in fitting[: request.gpu_count])


def _usable(rooms: Sequence[GpuRoom], request: Request) -> list[GpuRoom]:
    return [room for room in rooms if usable(room.gpu, request.gpu_count)]


def _free(room: GpuRoom, granted_bytes: dict[str, int]) -> int:
    return max(0, room.capacity_bytes - granted_bytes[room.gpu.uuid])


def _reason(rooms: Sequence[GpuRoom], granted_bytes: dict[str, int], request: Request, ahead: int) -> str:
    """`waits for 1205 MiB on one GPU: 641 MiB free of 22.99 GiB; 3 jobs ahead`."""
    where = "one GPU" if request.gpu_count == 1 else f"each of {request.gpu_count} GPUs"
    text = f"waits for {format_memory(request.memory_bytes)} on {where}: {_what_is_free(_usable(rooms, request), granted_bytes)}"
    return text + (f"; {ahead} job{'s' if ahead > 1 else ''} ahead" if ahead else "")


def _what_is_free(rooms: Sequence[GpuRoom], granted_bytes: dict[str, int]) -> str:
    if not rooms:
        return "no GPU answers"
    best = max(rooms, key=lambda room: _free(room, granted_bytes))
    where = f"{format_memory(_free(best, granted_bytes))} free of {format_memory(best.capacity_bytes)}"
    if len(rooms) > 1:
        where = f"at most {where} on any of {len(rooms)}"
    return where + (f", {format_memory(best.outsiders_bytes)} held by others" if best.outsiders_bytes else "")
