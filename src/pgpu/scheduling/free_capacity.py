"""What is free of each GPU at one moment of a round, in memory and in time, and who is there.

It refuses to say who goes first: it only tells what fits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pgpu.model import Gpu, Request, SharingMode
from pgpu.scheduling.admission_round import Candidate, Cause, Held
from pgpu.scheduling.capacity import (
    MOST_MPS_CLIENTS_FROM_BLACKWELL,
    GpuRoom,
    Tenancy,
    has_compute,
    most_clients,
    supports_mode,
    taken_bytes,
    usable,
)
from pgpu.units import format_memory, format_share


@dataclass(slots=True)
class FreeCapacity:
    """By UUID of each GPU; changed as jobs come and go."""

    free_bytes: dict[str, int]
    free_compute: dict[str, float]
    """Of its time, 0 to 1."""

    tenants: dict[str, Tenancy]
    _open: dict[tuple[SharingMode, int], bool] = field(default_factory=dict)
    """Whether any GPU lets a user's jobs in, in a mode: forgotten whenever somebody comes or goes."""

    @classmethod
    def of(cls, rooms: Sequence[GpuRoom]) -> "FreeCapacity":
        """Return what is free before a round."""
        return cls(
            {room.gpu.uuid: room.free_bytes for room in rooms},
            {room.gpu.uuid: room.free_compute for room in rooms},
            {room.gpu.uuid: room.tenancy for room in rooms},
        )

    def copy(self) -> "FreeCapacity":
        """Return one that is changed alone."""
        return FreeCapacity(dict(self.free_bytes), dict(self.free_compute), dict(self.tenants))

    def hosts(self, gpu: Gpu, candidate: Candidate) -> bool:
        """Whether a slice of a candidate fits on a GPU now."""
        request = candidate.request
        return (
            self.free_bytes[gpu.uuid] >= request.memory_bytes
            and candidate.can_use(gpu)
            and has_compute(self.free_compute[gpu.uuid], candidate.compute_share)
            and self.admits(gpu, candidate)
        )

    def hindrance(self, candidate: Candidate) -> Cause | None:
        """Say what plainly keeps a candidate from every GPU, without looking at each of them for each of thousands."""
        key = (candidate.mode, candidate.owner_uid)
        if key not in self._open:
            self._open[key] = any(
                tenancy.admits(*key, MOST_MPS_CLIENTS_FROM_BLACKWELL) for tenancy in self.tenants.values()
            )
        if not self._open[key]:
            return Cause.SHARING
        most_compute = max(self.free_compute.values(), default=0.0)
        return None if has_compute(most_compute, candidate.compute_share) else Cause.COMPUTE

    def admits(self, gpu: Gpu, candidate: Candidate) -> bool:
        """Whether a GPU is in a mode, or can be, in which a candidate may join those who are there."""
        tenancy = self.tenants[gpu.uuid]
        may_join = tenancy.admits(candidate.mode, candidate.owner_uid, most_clients(gpu))
        return may_join and supports_mode(gpu, candidate.request)

    def take(self, held: Held, gpus: Mapping[str, Gpu]) -> None:
        """Count a job that starts; `gpus` are those that count here, by UUID."""
        self._open.clear()
        for part in held.slices:
            if part.gpu_uuid in gpus:
                self.free_bytes[part.gpu_uuid] -= taken_bytes(gpus[part.gpu_uuid], part.memory_bytes)
                self.free_compute[part.gpu_uuid] -= held.compute_share
                self.tenants[part.gpu_uuid] = self.tenants[part.gpu_uuid].joined(held.mode, held.owner_uid)

    def give(self, held: Held, gpus: Mapping[str, Gpu]) -> None:
        """Count a job that ends; arguments as of `take`."""
        self._open.clear()
        for part in held.slices:
            if part.gpu_uuid in gpus:
                self.free_bytes[part.gpu_uuid] += taken_bytes(gpus[part.gpu_uuid], part.memory_bytes)
                self.free_compute[part.gpu_uuid] += held.compute_share
                self.tenants[part.gpu_uuid] = self.tenants[part.gpu_uuid].left()


def waits_for_memory(
    request: Request, rooms: Sequence[GpuRoom], free_bytes: Mapping[str, int], *, closed_gpus: int = 0
) -> str:
    """Say what is asked for and what is free: `waits for 1205 MiB on one GPU: 641 MiB free of 22.99 GiB`.

    Args:
        request: What is asked for.
        rooms: Every GPU on which it may start.
        free_bytes: By UUID.
        closed_gpus: How many others there are, on which nothing may.
    """
    where = "one GPU" if request.gpu_count == 1 else f"each of {request.gpu_count} GPUs"
    known = [room for room in rooms if usable(room.gpu, request.gpu_count)]
    told = "no GPU answers"
    if known:
        told = _how_many_fit(request, known, free_bytes) if request.gpu_count > 1 else _most_free(known, free_bytes)
    closed = f"; {closed_gpus} more take{'s' if closed_gpus == 1 else ''} no jobs" if closed_gpus else ""
    return f"waits for {format_memory(request.memory_bytes)} on {where}: {told}{closed}"


def _how_many_fit(request: Request, known: Sequence[GpuRoom], free_bytes: Mapping[str, int]) -> str:
    count = sum(free_bytes[room.gpu.uuid] >= request.memory_bytes for room in known)
    return f"{count or 'none'} of {len(known)} {'have' if count > 1 else 'has'} that much free"


def _most_free(known: Sequence[GpuRoom], free_bytes: Mapping[str, int]) -> str:
    best = max(known, key=lambda room: free_bytes[room.gpu.uuid])
    where = f"{format_memory(free_bytes[best.gpu.uuid])} free of {format_memory(best.capacity_bytes)}"
    if len(known) > 1:
        where = f"at most {where} on any of {len(known)}"
    return where + (f", {format_memory(best.outsiders_bytes)} held by others" if best.outsiders_bytes else "")


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
