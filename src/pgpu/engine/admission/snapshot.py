"""What the GPUs hold at one moment, told apart into ours and others'.

It reads and sums; what follows from it `scheduling` says.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pgpu.enforcement import Enforcer, SliceUse
from pgpu.gpu import GpuSource
from pgpu.ledger import Entry
from pgpu.model import Gpu, Job, Lease, SharingMode, Slice
from pgpu.scheduling import GpuRoom, Headroom, taken_bytes
from pgpu.scheduling.capacity import IDLE, Tenancy

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

    staying_bytes: HeldBytes = field(default_factory=dict)
    """Of these what cannot be moved to the host."""

    def movable_bytes(self, job_id: str, part: Slice) -> int:
        """Return how much of a slice's part of the device others could have while its job does not run."""
        if part.resident_bytes is None:
            return 0
        return max(0, part.resident_bytes - self.staying_bytes.get((job_id, part.gpu_uuid), 0))

    def outsiders_bytes(self, gpu_uuid: str) -> int:
        """Return what no slice's meter accounts for."""
        ours = sum(amount for (_, uuid), amount in self.held_bytes.items() if uuid == gpu_uuid)
        return max(0, self.used_bytes[gpu_uuid] - ours)

    def rooms(self, entries: Sequence[Entry], headroom: Headroom) -> tuple[GpuRoom, ...]:
        """Put leases, read later than the GPUs, beside what the GPUs hold."""
        granted = self._granted_bytes(entries)
        compute = _granted_compute(entries)
        tenancies = _tenancies(entries)
        return tuple(
            GpuRoom(
                gpu,
                headroom.of(gpu),
                self.outsiders_bytes(gpu.uuid),
                taken_bytes(gpu, granted.get(gpu.uuid, 0)),
                compute.get(gpu.uuid, 0.0),
                tenancies.get(gpu.uuid, IDLE),
            )
            for gpu in self.gpus
        )

    def _granted_bytes(self, entries: Sequence[Entry]) -> dict[str, int]:
        """A slice made smaller than what it holds counts as what it holds, one that oversubscribes as what must stay here."""
        granted: dict[str, int] = {}
        for lease in held_leases([entry for entry in entries if entry.is_counted]):
            for part in lease.slices:
                amount = max(part.memory_bytes, self.held_bytes.get((lease.job_id, part.gpu_uuid), 0))
                amount = amount if part.resident_bytes is None else part.resident_bytes
                granted[part.gpu_uuid] = granted.get(part.gpu_uuid, 0) + amount
        return granted


def _granted_compute(entries: Sequence[Entry]) -> dict[str, float]:
    granted: dict[str, float] = {}
    for entry in entries:
        if entry.job.lease is not None and entry.is_counted:
            for part in entry.job.lease.slices:
                granted[part.gpu_uuid] = granted.get(part.gpu_uuid, 0.0) + compute_of(entry.job)
    return granted


def compute_of(job: Job) -> float:
    """Return what a job takes of the time of each of its GPUs, 0 to 1: all of one that it has alone."""
    if job.lease is not None and job.lease.sharing is SharingMode.EXCLUSIVE:
        return 1.0
    return job.request.compute_share or 0.0


def _tenancies(entries: Sequence[Entry]) -> dict[str, Tenancy]:
    found: dict[str, Tenancy] = {}
    for entry in entries:
        lease = entry.job.lease
        if lease is None or not entry.is_counted:
            continue
        for part in lease.slices:
            before = found.get(part.gpu_uuid, IDLE)
            found[part.gpu_uuid] = before.joined(lease.sharing, entry.job.owner_uid)
    return found


BLIND = Snapshot((), {}, {})
"""What is seen while the GPUs cannot be read: no room anywhere."""


def held_leases(entries: Sequence[Entry]) -> list[Lease]:
    """Return the leases that still count."""
    return [entry.job.lease for entry in entries if entry.job.lease is not None and entry.is_lease_held]


def take_snapshot(
    source: GpuSource, enforcer: Enforcer, entries: Sequence[Entry], away: Collection[str] = ()
) -> Snapshot:
    """Read GPUs and meters, so that a job which allocates meanwhile is not taken for an outsider.

    The meters are read before and after the GPUs, again while they differ; if they never agree, the smaller reading
    counts, which makes outsiders larger and the room smaller. Of jobs that are `away`, by id, or on their way, nothing is
    counted: what their meters count is not on the GPU.

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
    seen = {key: use for key, use in meters.items() if key in before and key[0] not in away}
    steady = {key: min(use.used_bytes, before[key].used_bytes) for key, use in seen.items()}
    staying = {key: use.used_bytes if use.resident_bytes is None else use.resident_bytes for key, use in meters.items()}
    return Snapshot(gpus, used_bytes, steady, staying)


def _held(enforcer: Enforcer, leases: Sequence[Lease]) -> dict[tuple[str, str], SliceUse]:
    return {(lease.job_id, use.gpu_uuid): use for lease in leases for use in enforcer.use(lease)}
