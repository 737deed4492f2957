"""What the GPUs of one engine and the host's memory hold at one moment, and what of it belongs to jobs.

Values that cannot be read count as taken: no job starts on memory that may not be there.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pgpu.enforcement import Enforcer, SliceUse
from pgpu.gpu import GpuSource
from pgpu.host.meminfo import MEMINFO, read_meminfo
from pgpu.ledger import Entry
from pgpu.model import Gpu, Job, JobState, Lease, SharingMode, Slice
from pgpu.scheduling import GpuRoom, Headroom, taken_bytes
from pgpu.scheduling.capacity import IDLE, Tenancy
from pgpu.scheduling.slice_growth import grows
from pgpu.scheduling.yielding_headroom import may_use_headroom, yielded_bytes
from pgpu.structs import Struct, field, replace
from pgpu.units import MIB

KEPT_BYTES = 512 * MIB
"""Host memory that is never promised to a job."""

_MOST_READINGS = 5
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")

HeldBytes = Mapping[tuple[str, str], int]
"""Bytes that a job's meter counts, by job id and GPU UUID."""


class Snapshot(Struct, frozen=True):
    """Every GPU of one engine."""

    gpus: tuple[Gpu, ...]
    used_bytes: Mapping[str, int]
    """All memory in use, by UUID."""

    held_bytes: HeldBytes

    staying_bytes: HeldBytes = field(default_factory=dict)
    """Of `held_bytes`, what the driver cannot move to the host."""

    stable_bytes: Mapping[str, int] = field(default_factory=dict)
    """Peak of the memory outside of slices over the last period, by UUID; missing where it is not known to be stable."""

    def outsiders_bytes(self, gpu_uuid: str) -> int:
        """Return the memory in use on a GPU that no meter counts: it is held from outside of all slices."""
        metered_bytes = sum(held_bytes for (_, uuid), held_bytes in self.held_bytes.items() if uuid == gpu_uuid)
        return max(0, self.used_bytes[gpu_uuid] - metered_bytes)

    def movable_bytes(self, job_id: str, part: Slice) -> int:
        """Return how much of a slice's device memory becomes free while its job is suspended."""
        if part.resident_bytes is None:
            return 0
        return max(0, part.resident_bytes - self.staying_bytes.get((job_id, part.gpu_uuid), 0))

    def rooms(self, entries: Sequence[Entry], headroom: Headroom) -> tuple[GpuRoom, ...]:
        """Return the free room of each GPU, given all leases; they must be read later than the GPUs."""
        granted: dict[str, int] = {}
        compute: dict[str, float] = {}
        tenancies: dict[str, Tenancy] = {}
        undeclared: set[str] = set()
        growing: Counter[str] = Counter()
        for entry in entries:
            lease = entry.job.lease
            if lease is None or not entry.is_counted:
                continue
            for part in lease.slices:
                uuid = part.gpu_uuid
                # A slice counts as what it holds if a resize made it smaller, an oversubscribed one as its resident part.
                amount = max(part.memory_bytes, self.held_bytes.get((lease.job_id, uuid), 0))
                amount = amount if part.resident_bytes is None else part.resident_bytes
                granted[uuid] = granted.get(uuid, 0) + amount
                compute[uuid] = compute.get(uuid, 0.0) + compute_of(entry.job)
                tenancies[uuid] = tenancies.get(uuid, IDLE).with_job(lease.sharing, entry.job.owner_uid)
                growing[uuid] += grows(entry.job.request, lease.sharing)
                if not may_use_headroom(entry.job, lease):
                    undeclared.add(uuid)
        rooms = []
        for gpu in self.gpus:
            uuid = gpu.uuid
            room = GpuRoom(
                gpu,
                headroom.of(gpu),
                self.outsiders_bytes(uuid),
                taken_bytes(gpu, granted.get(uuid, 0)),
                compute.get(uuid, 0.0),
                tenancies.get(uuid, IDLE),
                growing[uuid],
            )
            if headroom.yields and uuid not in undeclared:
                room = replace(room, yielded_bytes=yielded_bytes(room, self.stable_bytes.get(uuid)))
            rooms.append(room)
        return tuple(rooms)


def compute_of(job: Job) -> float:
    """Return the share of each of its GPUs that a job takes, 0 to 1; 1 if it runs exclusively."""
    if job.lease is not None and job.lease.sharing is SharingMode.EXCLUSIVE:
        return 1.0
    return job.request.compute_share or 0.0


BLIND = Snapshot((), {}, {})
"""Stands for GPUs that cannot be read: no room anywhere."""


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
    leases = [entry.job.lease for entry in entries if entry.job.lease is not None and _may_use_gpu(entry)]
    meters = _read_meters(enforcer, leases)
    for _ in range(_MOST_READINGS):
        before = meters
        used_bytes = {gpu.uuid: source.memory(gpu.uuid).used_bytes for gpu in gpus}
        meters = _read_meters(enforcer, leases)
        if meters == before:
            break
    seen = {key: use for key, use in meters.items() if key in before and key[0] not in away}
    steady = {key: min(use.used_bytes, before[key].used_bytes) for key, use in seen.items()}
    staying = {key: use.used_bytes if use.resident_bytes is None else use.resident_bytes for key, use in meters.items()}
    return Snapshot(gpus, used_bytes, steady, staying)


def _may_use_gpu(entry: Entry) -> bool:
    """Whether a job's meter may count anything: its lease is not released, which removes the meter, and its command has begun."""
    job = entry.job
    # The holder is in the ledger before the command's first instruction. A claim has neither.
    is_unstarted = job.state is JobState.STARTING and job.holder is None and job.spec.has_program
    return entry.is_lease_held and not is_unstarted


def _read_meters(enforcer: Enforcer, leases: Sequence[Lease]) -> dict[tuple[str, str], SliceUse]:
    return {(lease.job_id, use.gpu_uuid): use for lease in leases for use in enforcer.use(lease)}


def available_bytes(meminfo: Path = MEMINFO, cgroups: Path = _CGROUPS, own_cgroup: Path = _OWN_CGROUP) -> int:
    """Return host memory that could be promised to jobs now: of the machine, or of this process's cgroups where that is less."""
    try:
        # MemAvailable and not MemFree: caches that the kernel can drop are free.
        machine_bytes = read_meminfo(meminfo)["MemAvailable"]
    except (OSError, ValueError, KeyError):
        return 0
    return max(0, min([machine_bytes, *_free_bytes_of_cgroups(cgroups, own_cgroup)]) - KEPT_BYTES)


def _free_bytes_of_cgroups(cgroups: Path, own_cgroup: Path) -> list[int]:
    """Return what the limit of each cgroup above this process leaves; cgroup v1 is not read."""
    try:
        line = next(line for line in own_cgroup.read_text(encoding="utf-8").splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    # Each cgroup limits the sum of all below it, so the limits of all ancestors count.
    found = []
    own = cgroups / line.removeprefix("0::").lstrip("/")
    for directory in (own, *own.parents):
        if cgroups not in (directory, *directory.parents):
            continue
        with suppress(OSError):  # the root cgroup has no limit
            limit = (directory / "memory.max").read_text(encoding="ascii").strip()
            used = (directory / "memory.current").read_text(encoding="ascii").strip()
            found += [] if limit == "max" else [max(0, int(limit) - int(used))]
    return found
