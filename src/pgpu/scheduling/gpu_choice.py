"""Places jobs on several GPUs together, where one after the other they do not fit.

Until a round of admission has ended nobody has started: what it granted may still change places for one more job. It
refuses to know what is worth keeping free: that is `placement`'s, for jobs that come one at a time.

The search fills GPU after GPU as full as whole jobs can, the one with least room first, and goes back where too much is
left over. Sources: minimum bin slack (Gupta and Ho 1999), with limited discrepancies (Harvey and Ginsberg 1995).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pgpu.model import SharingMode
from pgpu.scheduling.candidate import Candidate, Held
from pgpu.units import MIB

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
