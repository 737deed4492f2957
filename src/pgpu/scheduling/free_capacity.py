"""What is free on each GPU in the middle of a round, in memory, GPU time and sharing mode, and the reason text where it is short."""

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
    """Free capacity by GPU UUID; changed as jobs start and end."""

    free_bytes: dict[str, int]
    free_compute: dict[str, float]
    """Of its time, 0 to 1."""

    tenants: dict[str, Tenancy]
    _open: dict[tuple[SharingMode, int], bool] = field(default_factory=dict)
    """Cache: whether any GPU admits jobs of a user in a mode. Cleared on every change."""

    @classmethod
    def of(cls, rooms: Sequence[GpuRoom]) -> "FreeCapacity":
        """Return what is free before a round."""
        return cls(
            {room.gpu.uuid: room.free_bytes for room in rooms},
            {room.gpu.uuid: room.free_compute for room in rooms},
            {room.gpu.uuid: room.tenancy for room in rooms},
        )

    def copy(self) -> "FreeCapacity":
        """Return an independent copy."""
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
        """Return what keeps a candidate from every GPU; None if one may be free.

        A quick check before the GPUs are tried one by one, since the queue may have thousands of jobs.
        """
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
        """Whether the sharing mode of a GPU lets a candidate join the jobs there."""
        tenancy = self.tenants[gpu.uuid]
        may_join = tenancy.admits(candidate.mode, candidate.owner_uid, most_clients(gpu))
        return may_join and supports_mode(gpu, candidate.request)

    def take(self, held: Held, gpus: Mapping[str, Gpu]) -> None:
        """Subtract a job that starts, on the GPUs in `gpus` (by UUID)."""
        self._open.clear()
        for part in held.slices:
            if part.gpu_uuid in gpus:
                self.free_bytes[part.gpu_uuid] -= taken_bytes(gpus[part.gpu_uuid], part.memory_bytes)
                self.free_compute[part.gpu_uuid] -= held.compute_share
                self.tenants[part.gpu_uuid] = self.tenants[part.gpu_uuid].joined(held.mode, held.owner_uid)

    def give(self, held: Held, gpus: Mapping[str, Gpu]) -> None:
        """Add back a job that ends; arguments as for `take`."""
        self._open.clear()
        for part in held.slices:
            if part.gpu_uuid in gpus:
                self.free_bytes[part.gpu_uuid] += taken_bytes(gpus[part.gpu_uuid], part.memory_bytes)
                self.free_compute[part.gpu_uuid] += held.compute_share
                self.tenants[part.gpu_uuid] = self.tenants[part.gpu_uuid].left()


def waits_for_memory(
    request: Request, rooms: Sequence[GpuRoom], free_bytes: Mapping[str, int], *, closed_gpus: int = 0
) -> str:
    """Format requested and free memory: `waits for 1205 MiB on one GPU: 641 MiB free of 22.99 GiB`.

    Args:
        request: What the job asks for.
        rooms: Every GPU on which it may start.
        free_bytes: By UUID.
        closed_gpus: Number of further GPUs that are closed to new jobs.
    """
    where = "one GPU" if request.gpu_count == 1 else f"each of {request.gpu_count} GPUs"
    known = [room for room in rooms if usable(room.gpu, request.gpu_count)]
    if not known:
        free = "no GPU answers"
    elif request.gpu_count > 1:
        count = sum(free_bytes[room.gpu.uuid] >= request.memory_bytes for room in known)
        free = f"{count or 'none'} of {len(known)} {'have' if count > 1 else 'has'} that much free"
    else:
        best = max(known, key=lambda room: free_bytes[room.gpu.uuid])
        free = f"{format_memory(free_bytes[best.gpu.uuid])} free of {format_memory(best.capacity_bytes)}"
        if len(known) > 1:
            free = f"at most {free} on any of {len(known)}"
        if best.outsiders_bytes:
            free += f", {format_memory(best.outsiders_bytes)} held by others"
    closed = f"; {closed_gpus} more take{'s' if closed_gpus == 1 else ''} no jobs" if closed_gpus else ""
    return f"waits for {format_memory(request.memory_bytes)} on {where}: {free}{closed}"


def waits_for_compute(candidate: Candidate, rooms: Sequence[GpuRoom], space: FreeCapacity) -> str:
    """Format requested and free compute share: `waits for 30% of a GPU's time: 20% are free`."""
    request = candidate.request
    share = request.compute_share or 0.0
    free = [
        max(0.0, space.free_compute[uuid])
        for uuid in _with_memory(candidate, rooms, space)
        if _is_open(space.tenants[uuid], candidate)
    ]
    if request.gpu_count > 1:
        count = sum(has_compute(each, share) for each in free)
        many = f"{count or 'none'} of {len(free)} {'have' if count > 1 else 'has'} that much free"
        return f"waits for {format_share(share)} of the time of each of {request.gpu_count} GPUs: {many}"
    most = f"{format_share(max(free, default=0.0))} are free"
    return f"waits for {format_share(share)} of a GPU's time: " + (
        most if len(free) == 1 else f"at most {most} on any of {len(free)}"
    )


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


def waits_for_company(candidate: Candidate, rooms: Sequence[GpuRoom], space: FreeCapacity) -> str:
    """Format the sharing mode that a job needs, and those of the GPUs that have memory for it."""
    tenants = [space.tenants[uuid] for uuid in _with_memory(candidate, rooms, space)]
    words = list(dict.fromkeys(_mode_text(each, candidate) for each in tenants if not _is_open(each, candidate)))
    count = candidate.request.gpu_count
    wanted = "a GPU" if count == 1 else f"{count} GPUs"
    those = "the one there is is" if len(tenants) == 1 else f"those of {len(tenants)} that have memory for it are"
    return f"waits for {wanted} {_WANTED[candidate.mode]}: {those} {' or '.join(words)}"


def _mode_text(tenancy: Tenancy, candidate: Candidate) -> str:
    if tenancy.mode is None:
        return "of no use for it"
    if tenancy.mode is SharingMode.MPS is candidate.mode:
        is_own = tenancy.owner_uid == candidate.owner_uid
        return "shared by as many as MPS takes" if is_own else "shared by MPS with another user's jobs"
    return _IN_USE[tenancy.mode]


def _is_open(tenancy: Tenancy, candidate: Candidate) -> bool:
    return tenancy.admits(candidate.mode, candidate.owner_uid)


def _with_memory(candidate: Candidate, rooms: Sequence[GpuRoom], space: FreeCapacity) -> list[str]:
    return [
        room.gpu.uuid
        for room in rooms
        if candidate.can_use(room.gpu)
        and supports_mode(room.gpu, candidate.request)
        and space.free_bytes[room.gpu.uuid] >= candidate.request.memory_bytes
    ]
