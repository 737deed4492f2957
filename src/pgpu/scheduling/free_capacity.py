"""What is free of each GPU at one moment of a round, in memory and in time, and who is there.

It refuses to say who goes first: it only tells what fits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pgpu.model import Gpu, SharingMode
from pgpu.scheduling.admission_round import Cause
from pgpu.scheduling.candidate import Candidate, Held
from pgpu.scheduling.capacity import GpuRoom, has_compute, taken_bytes
from pgpu.scheduling.tenancy import MOST_MPS_CLIENTS_FROM_BLACKWELL, Tenancy, most_clients, supports_mode


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
