"""Choice of GPUs on this machine: for one job among the GPUs that can host it, and for all jobs granted in a round together.

One job gets the smallest MIG instance that covers it, since a larger job could not use that instance; else the GPU that it fits
best, and a job on several GPUs gets those that leave least free.

Until a round ends, none of its grants has started, so they may still change places to make room for one more job. The search
fills GPU after GPU with the fullest sum of whole jobs, the smallest GPU first, and backtracks when too much is left over.
Sources: minimum bin slack (Gupta and Ho 1999), with limited discrepancies (Harvey and Ginsberg 1995).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pgpu.model import Gpu, SharingMode
from pgpu.scheduling.admission_round import Candidate, Held
from pgpu.scheduling.capacity import GpuRoom
from pgpu.scheduling.free_capacity import FreeCapacity
from pgpu.scheduling.outlook import GpuResources, JobShape, NodeResources, Outlook
from pgpu.scheduling.placement import NO_PREFERENCE, PlacementPreference, place
from pgpu.units import MIB

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
    if request.gpu_count != 1 or request.compute_share or candidate.mode is not SharingMode.TIME_SLICE:
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


@dataclass(slots=True)
class _Search:
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
        """Yield the fullest fillings of one GPU, each of the largest jobs, and what they leave of it."""
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
            yield self._adding_up_to(total, fitting, sums), free - total

    def _adding_up_to(self, total: int, fitting: Sequence[str], sums: Sequence[int]) -> set[str]:
        chosen = set()
        for job, of_smaller in zip(fitting, reversed(sums[:-1]), strict=True):
            if self.wanted[job] <= total and of_smaller >> (total - self.wanted[job]) & 1:
                chosen.add(job)
                total -= self.wanted[job]
        return chosen
