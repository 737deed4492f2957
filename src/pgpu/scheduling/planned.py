"""A batch's plan at one round of admission: whose turn it is, who lets others start first, which GPUs have enough jobs.

A plan names jobs and no times, so it still holds when jobs end early or late. It refuses to grant: admission does, and
never past the memory that is there.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pgpu.model import Slice
from pgpu.scheduling.candidate import Candidate, Held


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What to do with a batch: at each moment those that fit start in this order."""

    order: tuple[str, ...]
    """Ids of the jobs."""

    most_at_once: int = 0
    """So many jobs on one GPU at most, though more may fit; 0 for as many as fit."""

    holds: Mapping[str, str] = field(default_factory=dict)
    """By id of a job: who of those before it in the order must have started first, though it fits."""

    end_seconds: float = 0.0
    """When the last will end, from the time of the plan on."""

    least_seconds: float = 0.0
    """No plan ends before; equal to `end_seconds` where this one is known to be the best."""


NO_PLAN = BatchPlan(())


class PlannedOrder:
    """What a plan says during one round."""

    def __init__(self, plan: BatchPlan, held: Sequence[Held]) -> None:
        self._plan = plan
        self._places = {job_id: place for place, job_id in enumerate(plan.order)}
        self._waiting: set[str] = set()
        self._jobs_on = Counter(part.gpu_uuid for each in held for part in each.slices)

    def __bool__(self) -> bool:
        return bool(self._places)

    def first(self, queue: Sequence[Candidate]) -> list[Candidate]:
        """Return those of one priority that the plan knows, in its order."""
        planned = [candidate for candidate in queue if self.knows(candidate)]
        return sorted(planned, key=lambda each: self._places[each.job_id])

    def knows(self, candidate: Candidate) -> bool:
        """Whether the plan names this job."""
        return candidate.job_id in self._places

    def holds_back(self, candidate: Candidate) -> bool:
        """Whether it lets another one start first that was looked at in this round and still waits."""
        return self._plan.holds.get(candidate.job_id) in self._waiting

    def has_enough(self, gpu_uuid: str) -> bool:
        """Whether so many jobs run on a GPU that one more would delay the end."""
        return 0 < self._plan.most_at_once <= self._jobs_on[gpu_uuid]

    def granted(self, slices: Sequence[Slice]) -> None:
        """Count a job that starts."""
        self._jobs_on.update(part.gpu_uuid for part in slices)

    def kept_waiting(self, candidate: Candidate) -> None:
        """Remember who was looked at and waits."""
        self._waiting.add(candidate.job_id)
