"""What the GPUs hold at one moment, told apart into ours and others'.

It reads and sums; what follows from it `scheduling` says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pgpu.enforcement import Enforcer
from pgpu.gpu import GpuSource
from pgpu.ledger import Entry
from pgpu.model import Gpu, Lease
from pgpu.scheduling import GpuRoom, Headroom, taken_bytes

_MOST_READINGS = 5

HeldBytes = Mapping[tuple[str, str], int]
"""By job id and GPU UUID: what the job's meter counts."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Every GPU of one engine."""

    gpus: tuple[Gpu, ...]
    used_bytes: Mapping[str, int]
    """By UUID: held by anybody."""

    held_bytes: HeldBytes

    def outsiders_bytes(self, gpu_uuid: str) -> int:
        """Return what no slice's meter accounts for."""
        ours = sum(amount for (_, uuid), amount in self.held_bytes.items() if uuid == gpu_uuid)
        return max(0, self.used_bytes[gpu_uuid] - ours)

    def rooms(self, entries: Sequence[Entry], headroom: Headroom) -> tuple[GpuRoom, ...]:
        """Put leases, read later than the GPUs, beside what the GPUs hold."""
        granted = self._granted_bytes(entries)
        compute = _granted_compute(entries)
        return tuple(
            GpuRoom(
                gpu,
                headroom.of(gpu),
                self.outsiders_bytes(gpu.uuid),
                taken_bytes(gpu, granted.get(gpu.uuid, 0)),
                compute.get(gpu.uuid, 0.0),
            )
            for gpu in self.gpus
        )

    def _granted_bytes(self, entries: Sequence[Entry]) -> dict[str, int]:
        """A slice made smaller than what it holds counts as what it holds."""
        granted: dict[str, int] = {}
        for lease in held_leases(entries):
            for part in lease.slices:
                amount = max(part.memory_bytes, self.held_bytes.get((lease.job_id, part.gpu_uuid), 0))
                granted[part.gpu_uuid] = granted.get(part.gpu_uuid, 0) + amount
        return granted


def _granted_compute(entries: Sequence[Entry]) -> dict[str, float]:
    granted: dict[str, float] = {}
    for entry in entries:
        if entry.job.lease is not None and entry.is_lease_held:
            for part in entry.job.lease.slices:
                granted[part.gpu_uuid] = granted.get(part.gpu_uuid, 0.0) + (entry.job.request.compute_share or 0.0)
    return granted


BLIND = Snapshot((), {}, {})
"""What is seen while the GPUs cannot be read: no room anywhere."""


def held_leases(entries: Sequence[Entry]) -> list[Lease]:
    """Return the leases that still count."""
    return [entry.job.lease for entry in entries if entry.job.lease is not None and entry.is_lease_held]


def take_snapshot(source: GpuSource, enforcer: Enforcer, entries: Sequence[Entry]) -> Snapshot:
    """Read GPUs and meters, so that a job which allocates meanwhile is not taken for an outsider.

    The meters are read before and after the GPUs, again while they differ; if they never agree, the smaller reading
    counts, which makes outsiders larger and the room smaller.

    Raises:
        NodeError: A GPU cannot be read.
    """
    gpus = tuple(source.gpus())
    leases = held_leases(entries)
    meters = _held(enforcer, leases)
    for _ in range(_MOST_READINGS):
        before = meters
        used_bytes = {gpu.uuid: source.memory(gpu.uuid).used_bytes for gpu in gpus}
        meters = _held(enforcer, leases)
        if meters == before:
            break
    steady = {key: min(amount, before.get(key, 0)) for key, amount in meters.items()}
    return Snapshot(gpus, used_bytes, steady)


def _held(enforcer: Enforcer, leases: Sequence[Lease]) -> dict[tuple[str, str], int]:
    return {(lease.job_id, use.gpu_uuid): use.used_bytes for lease in leases for use in enforcer.use(lease)}
