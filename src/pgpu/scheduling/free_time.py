"""What a job waits for where there is memory enough, in words: a share of GPU time, or GPUs shared in its mode."""

from collections.abc import Sequence

from pgpu.model import SharingMode
from pgpu.scheduling.candidate import Candidate
from pgpu.scheduling.capacity import GpuRoom, has_compute
from pgpu.scheduling.free_capacity import FreeCapacity
from pgpu.scheduling.tenancy import Tenancy, supports_mode
from pgpu.units import format_share


def waits_for_compute(candidate: Candidate, rooms: Sequence[GpuRoom], space: FreeCapacity) -> str:
    """Say which share is asked for and what is free: `waits for 30% of a GPU's time: 20% are free`."""
    request = candidate.request
    share = request.compute_share or 0.0
    able = [
        room.gpu.uuid
        for room in rooms
        if _could_host(room, candidate)
        and space.free_bytes[room.gpu.uuid] >= request.memory_bytes
        and _is_open(space.tenants[room.gpu.uuid], candidate)
    ]
    free = [max(0.0, space.free_compute[uuid]) for uuid in able]
    if request.gpu_count > 1:
        count = sum(has_compute(each, share) for each in free)
        told = f"{count or 'none'} of {len(free)} {'have' if count > 1 else 'has'} that much free"
        return f"waits for {format_share(share)} of the time of each of {request.gpu_count} GPUs: {told}"
    most = f"{format_share(max(free, default=0.0))} are free"
    return f"waits for {format_share(share)} of a GPU's time: " + (
        most if len(free) == 1 else f"at most {most} on any of {len(free)}"
    )


def waits_for_company(candidate: Candidate, rooms: Sequence[GpuRoom], space: FreeCapacity) -> str:
    """Say how it would share a GPU, and how those with memory for it are shared."""
    free_bytes, memory_bytes = space.free_bytes, candidate.request.memory_bytes
    able = [
        room.gpu.uuid for room in rooms if _could_host(room, candidate) and free_bytes[room.gpu.uuid] >= memory_bytes
    ]
    tenants = [space.tenants[uuid] for uuid in able]
    words = list(dict.fromkeys(_told(each, candidate) for each in tenants if not _is_open(each, candidate)))
    count = candidate.request.gpu_count
    wanted = "a GPU" if count == 1 else f"{count} GPUs"
    return f"waits for {wanted} {_WANTED[candidate.mode]}: {_those(len(tenants))} {' or '.join(words)}"


_WANTED = {
    SharingMode.TIME_SLICE: "shared in time slices",
    SharingMode.MPS: "shared by MPS with jobs of the same user",
    SharingMode.EXCLUSIVE: "of its own",
}
_IN_USE = {
    SharingMode.TIME_SLICE: "shared in time slices",
    SharingMode.MPS: "shared by MPS",
    SharingMode.EXCLUSIVE: "one job's alone",
}


def _those(count: int) -> str:
    return "the one there is is" if count == 1 else f"those of {count} that have memory for it are"


def _told(tenancy: Tenancy, candidate: Candidate) -> str:
    if tenancy.mode is None:
        return "of no use for it"
    if tenancy.mode is SharingMode.MPS is candidate.mode:
        is_own = tenancy.owner_uid == candidate.owner_uid
        return "shared by as many as MPS takes" if is_own else "shared by MPS with another user's jobs"
    return _IN_USE[tenancy.mode]


def _is_open(tenancy: Tenancy, candidate: Candidate) -> bool:
    return tenancy.admits(candidate.mode, candidate.owner_uid)


def _could_host(room: GpuRoom, candidate: Candidate) -> bool:
    return candidate.can_use(room.gpu) and supports_mode(room.gpu, candidate.request)
