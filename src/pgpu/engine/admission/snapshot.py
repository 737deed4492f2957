"""What the GPUs of one engine and the host's memory hold at one moment, and what of it belongs to jobs.

Values that cannot be read count as taken: no job starts on memory that may not be there.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pgpu.enforcement import Enforcer, SliceUse
from pgpu.gpu import GpuSource
from pgpu.ledger import Entry
from pgpu.model import Gpu, Job, Lease, SharingMode, Slice
from pgpu.scheduling import GpuRoom, Headroom, taken_bytes
from pgpu.scheduling.capacity import IDLE, Tenancy
from pgpu.units import MIB

KEPT_BYTES = 512 * MIB
"""Host memory that is never promised to a job."""

_MOST_READINGS = 5
_KIB = 1024
_MEMINFO = Path("/proc/meminfo")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")

HeldBytes = Mapping[tuple[str, str], int]
"""Bytes that a job's meter counts, by job id and GPU UUID."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Every GPU of one engine."""

    gpus: tuple[Gpu, ...]
    used_bytes: Mapping[str, int]
    """All memory in use, by UUID."""

    held_bytes: HeldBytes

    staying_bytes: HeldBytes = field(default_factory=dict)
    """Of `held_bytes`, what the driver cannot move to the host."""

    def movable_bytes(self, job_id: str, part: Slice) -> int:
        """Return how much of a slice's device memory becomes free while its job is suspended."""
        if part.resident_bytes is None:
            return 0
        return max(0, part.resident_bytes - self.staying_bytes.get((job_id, part.gpu_uuid), 0))

    def outsiders_bytes(self, gpu_uuid: str) -> int:
        """Return the memory that no meter of a slice counts."""
        ours = sum(amount for (_, uuid), amount in self.held_bytes.items() if uuid == gpu_uuid)
        return max(0, self.used_bytes[gpu_uuid] - ours)

    def rooms(self, entries: Sequence[Entry], headroom: Headroom) -> tuple[GpuRoom, ...]:
        """Return the free room of each GPU, given all leases; they must be read later than the GPUs."""
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
        """A slice counts as what it holds if a resize made it smaller than that; an oversubscribed one as its resident part."""
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
    """Return the share of each of its GPUs that a job takes, 0 to 1; 1 if it runs exclusively."""
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
"""Stands for GPUs that cannot be read: no room anywhere."""


def held_leases(entries: Sequence[Entry]) -> list[Lease]:
    """Return the leases that still hold memory."""
    return [entry.job.lease for entry in entries if entry.job.lease is not None and entry.is_lease_held]


def take_snapshot(
    source: GpuSource, enforcer: Enforcer, entries: Sequence[Entry], away: Collection[str] = ()
) -> Snapshot:
    """Read GPUs and meters so that memory which a job allocates meanwhile does not count as used from outside.

    The meters are read before and after the GPUs, and again while the two readings differ. If they never agree the smaller
    one counts: this makes the use from outside larger and the room smaller.

    Args:
        source: Of the GPUs.
        enforcer: Reads the meters.
        entries: Every job that holds a lease.
        away: Ids of jobs with processes that are, or may be, on the host; their meters count memory that is not on the GPU.

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


def available_bytes(meminfo: Path = _MEMINFO, cgroups: Path = _CGROUPS, own_cgroup: Path = _OWN_CGROUP) -> int:
    """Return host memory that could be promised to jobs now: of the machine, or of this process's cgroups where that is less."""
    try:
        machine_bytes = _available_of_machine(meminfo)
    except (OSError, ValueError, StopIteration):
        return 0
    return max(0, min([machine_bytes, *_left_of_cgroups(cgroups, own_cgroup)]) - KEPT_BYTES)


def _available_of_machine(meminfo: Path) -> int:
    lines = meminfo.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * _KIB for line in lines if line.startswith("MemAvailable:"))


def _left_of_cgroups(cgroups: Path, own_cgroup: Path) -> list[int]:
    """Return what the limit of each cgroup above this process leaves; cgroup v1 is not read."""
    try:
        line = next(line for line in own_cgroup.read_text(encoding="utf-8").splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    found = []
    place = cgroups / line.removeprefix("0::").lstrip("/")
    for directory in (place, *place.parents):
        if cgroups in (directory, *directory.parents):
            found += _left_of(directory)
    return found


def _left_of(cgroup: Path) -> list[int]:
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        used = (cgroup / "memory.current").read_text(encoding="ascii").strip()
    except OSError:
        return []
    return [] if limit == "max" else [max(0, int(limit) - int(used))]
