"""Free capacity in one round: what is free on each GPU, which GPUs a job gets, and text about what is missing.

One job gets the smallest MIG instance that covers it, since a larger job could not use that instance; else the GPU that it fits
best, and a job on several GPUs gets those that leave least free.

Until a round ends, none of its grants has started, so they may still change places to make room for one more job. The search
fills GPU after GPU with the fullest sum of whole jobs, the smallest GPU first, and backtracks when too much is left over.
Sources: minimum bin slack (Gupta and Ho 1999), with limited discrepancies (Harvey and Ginsberg 1995).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pgpu.model import Gpu, Request, SharingMode
from pgpu.scheduling.admission_round import Candidate, Cause, Held
from pgpu.scheduling.capacity import (
    MOST_MPS_CLIENTS_FROM_BLACKWELL,
    GpuRoom,
    Tenancy,
    format_models,
    has_compute,
    most_clients,
    supports_mode,
    taken_bytes,
    usable,
)
from pgpu.scheduling.cluster_resources import GpuResources, JobShape, NodeResources
from pgpu.scheduling.outlook import Outlook
from pgpu.scheduling.placement import NO_PREFERENCE, PlacementPreference, place
from pgpu.scheduling.slice_growth import kept_for_growth
from pgpu.structs import Struct, field
from pgpu.units import MIB, format_memory, format_share


class FreeCapacity(Struct):
    """Free capacity by GPU UUID; changed as jobs start and end."""

    free_bytes: dict[str, int]
    """For slices of any size; negative while slices use headroom."""

    free_compute: dict[str, float]
    """Of its time, 0 to 1."""

    tenants: dict[str, Tenancy]
    yielded_bytes: dict[str, int] = field(default_factory=dict)
    """Further bytes for candidates that use headroom, of GPUs that have some."""

    rooms: Mapping[str, GpuRoom] = field(default_factory=dict)
    """As they were before the round; never changed."""

    growing_jobs: dict[str, int] = field(default_factory=dict)
    """Number of jobs whose slices may grow, of GPUs that have some."""

    _open: dict[tuple[SharingMode, int], bool] = field(default_factory=dict)
    """Cache: whether any GPU admits jobs of a user in a mode. Cleared on every change."""

    @classmethod
    def of(cls, rooms: Sequence[GpuRoom]) -> "FreeCapacity":
        """Return what is free before a round."""
        return cls(
            # Headroom in use is owed: a job that ends gives it back first.
            {room.gpu.uuid: max(-room.headroom_bytes, room.capacity_bytes - room.granted_bytes) for room in rooms},
            {room.gpu.uuid: room.free_compute for room in rooms},
            {room.gpu.uuid: room.tenancy for room in rooms},
            {room.gpu.uuid: room.yielded_bytes for room in rooms if room.yielded_bytes},
            {room.gpu.uuid: room for room in rooms},
            {room.gpu.uuid: room.growing_jobs for room in rooms if room.growing_jobs},
        )

    def copy(self) -> "FreeCapacity":
        return FreeCapacity(
            dict(self.free_bytes),
            dict(self.free_compute),
            dict(self.tenants),
            dict(self.yielded_bytes),
            self.rooms,
            dict(self.growing_jobs),
        )

    def bytes_for(self, gpu_uuid: str, candidate: Candidate, *, yields: bool = True) -> int:
        """Return the largest slice that a candidate could have on a GPU now; `yields` includes headroom that yields to it."""
        free_bytes = self.free_bytes[gpu_uuid]
        if yields and candidate.uses_headroom:
            free_bytes += self.yielded_bytes.get(gpu_uuid, 0)
        if not (candidate.grows or gpu_uuid in self.growing_jobs) or (room := self.rooms.get(gpu_uuid)) is None:
            return free_bytes
        if self.holds_back(gpu_uuid, candidate):
            return 0
        # An instance has one job, which needs none of it for others.
        is_idle = self.tenants[gpu_uuid].jobs == 0 or room.gpu.is_instance
        return free_bytes - kept_for_growth(room.gpu.memory_bytes, is_idle=is_idle, has_chosen_sizes=True)

    def holds_back(self, gpu_uuid: str, candidate: Candidate) -> bool:
        """Whether a job that waits to grow keeps a candidate from a GPU."""
        room = self.rooms.get(gpu_uuid)
        if room is None or not (room.growers and candidate.grows):
            return False
        return room.holds_others or candidate.owner_uid in room.growers

    def hosts(self, gpu: Gpu, candidate: Candidate, *, yields: bool = False) -> bool:
        """Whether a slice of a candidate fits on a GPU now; `yields` includes headroom."""
        request = candidate.request
        return (
            self.bytes_for(gpu.uuid, candidate, yields=yields) >= request.memory_bytes
            and candidate.can_use(gpu)
            and has_compute(self.free_compute[gpu.uuid], candidate.compute_share)
            and self.admits(gpu, candidate)
        )

    def hindrance(self, candidate: Candidate) -> Cause | None:
        """Return what keeps a candidate from every GPU; None if one may be free.

        A quick check before the GPUs are tried one by one, since the queue may have thousands of jobs.
        """
        key = (candidate.mode, candidate.owner_uid)
        # With the largest limit of MPS clients, since the GPU is not known here: this check may let through, but not exclude.
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
            if not held.uses_headroom:
                self.yielded_bytes.pop(part.gpu_uuid, None)
            if part.gpu_uuid in gpus:
                self.free_bytes[part.gpu_uuid] -= taken_bytes(gpus[part.gpu_uuid], part.memory_bytes)
                self.free_compute[part.gpu_uuid] -= held.compute_share
                self.tenants[part.gpu_uuid] = self.tenants[part.gpu_uuid].with_job(held.mode, held.owner_uid)
                self._count_growing(part.gpu_uuid, held, 1)

    def give(self, held: Held, gpus: Mapping[str, Gpu]) -> None:
        """Add back a job that ends; arguments as for `take`."""
        self._open.clear()
        for part in held.slices:
            if part.gpu_uuid in gpus:
                self.free_bytes[part.gpu_uuid] += taken_bytes(gpus[part.gpu_uuid], part.memory_bytes)
                self.free_compute[part.gpu_uuid] += held.compute_share
                self.tenants[part.gpu_uuid] = self.tenants[part.gpu_uuid].without_job()
                self._count_growing(part.gpu_uuid, held, -1)

    def _count_growing(self, gpu_uuid: str, held: Held, change: int) -> None:
        if held.grows:
            self.growing_jobs[gpu_uuid] = self.growing_jobs.get(gpu_uuid, 0) + change
            if not self.growing_jobs[gpu_uuid]:
                del self.growing_jobs[gpu_uuid]


def explain_memory(
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
    where += f" of {format_models(request)}" if request.gpu_models else ""
    known = [room for room in rooms if usable(room.gpu, request)]
    if not known:
        free = "no GPU answers"
    elif request.gpu_count > 1:
        count = sum(free_bytes[room.gpu.uuid] >= request.memory_bytes for room in known)
        free = f"{count or 'none'} of {len(known)} {'have' if count > 1 else 'has'} that much free"
    else:
        best = max(known, key=lambda room: free_bytes[room.gpu.uuid])
        free = f"{format_memory(max(0, free_bytes[best.gpu.uuid]))} free of {format_memory(best.capacity_bytes)}"
        if len(known) > 1:
            free = f"at most {free} on any of {len(known)}"
        if best.outsiders_bytes:
            free += f", {format_memory(best.outsiders_bytes)} held by others"
    closed = f"; {closed_gpus} more take{'s' if closed_gpus == 1 else ''} no jobs" if closed_gpus else ""
    return f"waits for {format_memory(request.memory_bytes)} on {where}: {free}{closed}"


def explain_compute(candidate: Candidate, rooms: Sequence[GpuRoom], space: FreeCapacity) -> str:
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


def explain_sharing(candidate: Candidate, rooms: Sequence[GpuRoom], space: FreeCapacity) -> str:
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
        and space.bytes_for(room.gpu.uuid, candidate) >= candidate.request.memory_bytes
    ]


# Thousandths of a GPU's compute.
ALL_OF_IT = 1000

# An empty outlook, with which the best fit wins. The jobs of one machine are too few to price future jobs: prices made of
# them left 1.0 % less allocated if half of the jobs are large, 0.6 % less with openb's mix, and 0.3 % more with small ones.
NOTHING_KNOWN = Outlook([])

# Fillings tried for one GPU: the fullest.
MOST_FILLINGS = 4

# GPUs that are filled before the search gives up: some 10 ms for a hundred jobs.
MOST_STEPS = 100

# With more jobs than this, none is moved.
MOST_JOBS = 256


class GpuChoice:
    """Chooses GPUs of one machine for one job after the other."""

    def __init__(self, rooms: Sequence[GpuRoom]) -> None:
        self._most_bytes = {room.gpu.uuid: max(1, room.gpu.memory_bytes - room.headroom_bytes) for room in rooms}

    def choose(self, candidate: Candidate, fitting: Sequence[Gpu], space: FreeCapacity) -> Sequence[Gpu]:
        """Choose as many GPUs as the job asks for.

        Args:
            candidate: The job.
            fitting: GPUs that can host it now, in NVML index order: at least as many as it asks for.
            space: What is free there.
        """
        request = candidate.request
        instances = [gpu for gpu in fitting if gpu.is_instance]
        if instances and request.gpu_count == 1:
            return [min(instances, key=lambda gpu: gpu.memory_bytes)]
        if len(fitting) == request.gpu_count:
            return fitting
        shape = JobShape(request.gpu_count, round((request.compute_share or 0.0) * ALL_OF_IT), request.memory_bytes)
        node = NodeResources("", tuple(self._resources(gpu, space) for gpu in fitting))
        # In exclusive mode, idle GPUs alone are in `fitting`, but memory of outsiders would make them look shared.
        is_exclusive = candidate.mode is SharingMode.EXCLUSIVE
        preference = NO_PREFERENCE if is_exclusive else PlacementPreference(candidate.mode)
        placement = place(shape, [node], NOTHING_KNOWN, preference)
        chosen = () if placement is None else placement.gpu_uuids
        return [gpu for gpu in fitting if gpu.uuid in chosen]

    def _resources(self, gpu: Gpu, space: FreeCapacity) -> GpuResources:
        free_bytes = space.free_bytes[gpu.uuid]
        return GpuResources(
            gpu.uuid,
            round(space.free_compute[gpu.uuid] * ALL_OF_IT),
            free_bytes,
            ALL_OF_IT,
            max(free_bytes, self._most_bytes[gpu.uuid]),
            space.tenants[gpu.uuid].mode,
        )


def fit_together(wanted_bytes: Mapping[str, int], free_bytes: Mapping[str, int]) -> dict[str, str] | None:
    """Place jobs that need one GPU each so that all of them fit.

    Args:
        wanted_bytes: By job.
        free_bytes: By GPU; the first of equal ones is filled first.

    Returns:
        The GPU of each job; None if no solution was found.
    """
    # Whole MiB, jobs rounded up and GPUs rounded down: a solution here is one in bytes.
    wanted = {job: -(-amount // MIB) for job, amount in wanted_bytes.items()}
    free = {gpu: amount // MIB for gpu, amount in free_bytes.items()}
    left_over = sum(free.values()) - sum(wanted.values())
    if left_over < 0 or len(wanted) > MOST_JOBS:
        return None
    search = _Search(wanted, sorted(free, key=lambda gpu: free[gpu]), free)
    return search.places if search.fills(0, sorted(wanted, key=lambda job: -wanted[job]), left_over) else None


def places_with_one_more(
    candidate: Candidate, granted: Iterable[Held], free_bytes: Mapping[str, int]
) -> dict[str, str] | None:
    """Place a request on one GPU together with jobs that were granted one and have not started.

    Args:
        candidate: A job that does not fit beside them where they are.
        granted: Grants of the same round. Jobs on several GPUs, on an instance, with a compute share or in another mode than
            time slices are not moved.
        free_bytes: By GPU that may be used in time slices, beside those jobs.

    Returns:
        The GPU of each job that may move, by its id; None if no solution was found.
    """
    request = candidate.request
    is_special = request.gpu_count != 1 or request.compute_share or request.gpu_models
    if is_special or candidate.mode is not SharingMode.TIME_SLICE:
        return None
    free, wanted = dict(free_bytes), {"": request.memory_bytes}
    for held in granted:
        part = held.slices[0]
        may_move = held.mode is SharingMode.TIME_SLICE and not held.compute_share
        if len(held.slices) == 1 and part.gpu_uuid in free and may_move:
            free[part.gpu_uuid] += part.memory_bytes
            wanted[held.job_id] = part.memory_bytes
    places = fit_together(wanted, free)
    return places and {job_id: gpu for job_id, gpu in places.items() if job_id}


class _Search(Struct):
    """Depth-first search over the GPUs; amounts in whole MiB."""

    wanted: Mapping[str, int]
    gpus: Sequence[str]
    free: Mapping[str, int]
    places: dict[str, str] = field(default_factory=dict)
    steps: int = 0

    def fills(self, number: int, jobs: Sequence[str], left_over: int) -> bool:
        """Place jobs, the largest first, on the GPUs from `number` on, of which `left_over` may stay free in all."""
        if not jobs:
            return True
        self.steps += 1
        if number == len(self.gpus) or self.steps > MOST_STEPS:
            return False
        gpu = self.gpus[number]
        for chosen, unused in self._fillings(jobs, self.free[gpu], left_over):
            rest = [job for job in jobs if job not in chosen]
            if self.fills(number + 1, rest, left_over - unused):
                self.places.update(dict.fromkeys(chosen, gpu))
                return True
        return False

    def _fillings(self, jobs: Sequence[str], free: int, left_over: int) -> Iterator[tuple[set[str], int]]:
        # The fullest first, each of the largest jobs, with what it leaves of the GPU.
        # Subset sums as bits: bit s of sums[-1] is set if some of these jobs add up to s. `sums` keeps the set after each
        # job, the smallest first, from which the jobs of one sum are read back.
        fitting = [job for job in jobs if self.wanted[job] <= free]
        sums = [1]
        for job in reversed(fitting):
            sums.append((sums[-1] | sums[-1] << self.wanted[job]) & ((2 << free) - 1))
        reachable = sums[-1]
        for _ in range(MOST_FILLINGS):
            total = reachable.bit_length() - 1
            if total < 0 or free - total > left_over:
                return
            reachable ^= 1 << total
            yield self._subset_of_sum(total, fitting, sums), free - total

    def _subset_of_sum(self, total: int, fitting: Sequence[str], sums: Sequence[int]) -> set[str]:
        chosen = set()
        for job, of_smaller in zip(fitting, reversed(sums[:-1]), strict=True):
            if self.wanted[job] <= total and of_smaller >> (total - self.wanted[job]) & 1:
                chosen.add(job)
                total -= self.wanted[job]
        return chosen
