"""Places jobs on several GPUs together, where one after the other they do not fit.

Until a round of admission has ended nobody has started: what it granted may still change places for one more job. It
refuses to know what is worth keeping free: that is `placement`'s, for jobs that come one at a time.

The search fills GPU after GPU as full as whole jobs can, the one with least room first, and goes back where too much is
left over. Sources: minimum bin slack (Gupta and Ho 1999), with limited discrepancies (Harvey and Ginsberg 1995).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pgpu.model import Gpu, Request, SharingMode
from pgpu.scheduling.admission_round import Candidate, Held
from pgpu.scheduling.capacity import GpuRoom
from pgpu.scheduling.free_capacity import FreeCapacity
from pgpu.scheduling.outlook import GpuResources, JobShape, NodeResources, Outlook
from pgpu.scheduling.placement import NO_PREFERENCE, PlacementPreference, place
from pgpu.units import MIB

ALL_OF_IT = 1000
"""Thousandths of a GPU's compute."""


NOTHING_KNOWN = Outlook([])
"""With it the best fit wins. What waits and runs on one machine is too little to price the jobs to come: prices made of it
left 1.0 % less allocated where half of the jobs are large, 0.6 % less with openb's shares, and 0.3 % more with small ones."""


class GpuChoice:
    """Chooses GPUs of one machine for one job after the other."""

    def __init__(self, rooms: Sequence[GpuRoom]) -> None:
        self._most_bytes = {room.gpu.uuid: _most_bytes(room) for room in rooms}

    def choose(
        self,
        candidate: Candidate,
        fitting: Sequence[Gpu],
        space: FreeCapacity,
    ) -> Sequence[Gpu]:
        """Choose as many GPUs as the job asks for.

        Args:
            candidate: What it asks for.
            fitting: Those that can host it now, in NVML index order: at least as many as it asks for.
            space: What is free of them, and who is there.
        """
        request = candidate.request
        instances = [gpu for gpu in fitting if gpu.is_instance]
        if instances and request.gpu_count == 1:
            return [min(instances, key=lambda gpu: gpu.memory_bytes)]
        if len(fitting) == request.gpu_count:
            return fitting
        gpus = tuple(self._offer(gpu, space) for gpu in fitting)
        placement = place(_shape(request), [NodeResources("", gpus)], NOTHING_KNOWN, _wish(candidate.mode))
        chosen = () if placement is None else placement.gpu_uuids
        return [gpu for gpu in fitting if gpu.uuid in chosen]

    def _offer(self, gpu: Gpu, space: FreeCapacity) -> GpuResources:
        free_bytes = space.free_bytes[gpu.uuid]
        return GpuResources(
            gpu.uuid,
            round(space.free_compute[gpu.uuid] * ALL_OF_IT),
            free_bytes,
            ALL_OF_IT,
            max(free_bytes, self._most_bytes[gpu.uuid]),
            space.tenants[gpu.uuid].mode,
        )


def _most_bytes(room: GpuRoom) -> int:
    return max(1, room.gpu.memory_bytes - room.headroom_bytes)


def _wish(mode: SharingMode) -> PlacementPreference:
    """Whoever wants a GPU alone is asked for idle ones only, whatever outsiders hold of them."""
    return NO_PREFERENCE if mode is SharingMode.EXCLUSIVE else PlacementPreference(mode)


def _shape(request: Request) -> JobShape:
    return JobShape(request.gpu_count, round((request.compute_share or 0.0) * ALL_OF_IT), request.memory_bytes)


MOST_FILLINGS = 4
"""Fillings of one GPU that are tried: the fullest."""

MOST_STEPS = 100
"""GPUs that are filled before the search gives up: some 10 ms for a hundred jobs."""

MOST_JOBS = 256
"""Of more jobs than so many, none is moved."""


def fit_together(wanted_bytes: Mapping[str, int], free_bytes: Mapping[str, int]) -> dict[str, str] | None:
    """Place jobs that need one GPU each so that all of them fit.

    Args:
        wanted_bytes: By job.
        free_bytes: By GPU; the first of equal ones is filled first.

    Returns:
        The GPU of each job; None if no way was found.
    """
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
        candidate: What does not fit beside them where they are.
        granted: What was granted in the same round; jobs on several GPUs, on an instance, with a share of compute or in
            another mode than time slices stay.
        free_bytes: By GPU that may be used in time slices, beside those jobs.

    Returns:
        The GPU of each job that may change places, by its id; None if no way was found.
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
    """Amounts in whole MiB: of jobs rounded up, of GPUs down, so that what fits here fits there."""

    wanted: Mapping[str, int]
    gpus: Sequence[str]
    free: Mapping[str, int]
    places: dict[str, str] = field(default_factory=dict)
    steps: int = 0

    def fills(self, number: int, jobs: Sequence[str], left_over: int) -> bool:
        """Place jobs, the largest first, on the GPUs from this one on, of which so much may stay free."""
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
