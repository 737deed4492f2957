"""In which order waiting jobs are looked at.

By priority; of one priority the user who holds the smallest share of the machine; of that user's jobs the one with the
smallest memory-time, whose rank grows with its wait. Who goes before this order because nobody should wait so long, it
refuses to know: `precedence` does.

Sources: dominant resource fairness (Ghodsi et al., NSDI'11), applied to memory and compute; shortest job first on
memory-time with ageing.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pgpu.model import Slice
from pgpu.scheduling.admission_round import NO_QUOTA, Candidate, Held, Precedence, Quota


@dataclass(frozen=True, slots=True)
class OrderRules:
    """How long things are taken to be."""

    default_duration_seconds: float = 600.0
    """Of a job without history. Default: what a first look at a model takes."""

    ageing_seconds: float = 600.0
    """A job's rank has doubled after waiting so long. Default: as long as a job of unknown length."""

    patience_seconds: float = 1800.0
    """Who waits longer is overdue, and of those the oldest go first (`precedence`). Default: half an hour."""

    planned_patience_seconds: float = 86400.0
    """The same of a job of a plan, which may be put off for the sake of the whole batch. Default: a day, longer than a night's
    batch waits."""

    faith_seconds: float = 4 * 3600.0
    """So long at least an overdue job's GPUs stay the same ones. Default: four hours, longer than most jobs of a lab run."""


@dataclass(frozen=True, slots=True)
class Machine:
    """All GPUs together, for shares of the whole."""

    capacity_bytes: int
    gpu_count: int

    def dominant_share(self, memory_bytes: int, compute_share: float) -> float:
        """Return the larger of the shares of all memory and of all GPU time; `compute_share` is summed over GPUs."""
        return max(memory_bytes / max(1, self.capacity_bytes), compute_share / max(1, self.gpu_count))


class FairOrder:
    """Yields candidates one by one; each grant that is told moves its user back."""

    def __init__(
        self,
        machine: Machine,
        shares: Mapping[int, float],
        quotas: Mapping[int, Quota],
        rules: OrderRules,
        now_seconds: float,
    ) -> None:
        """Start from what every user holds.

        Args:
            machine: What shares are shares of.
            shares: By UID, the dominant share that is held now.
            quotas: By UID, whose weight counts here.
            rules: How long things are taken to be.
            now_seconds: Seconds since the epoch.
        """
        self._machine = machine
        self._shares = defaultdict(float, shares)
        self._quotas = quotas
        self._rules = rules
        self._now_seconds = now_seconds

    def granted(self, candidate: Candidate) -> None:
        """Count what a candidate was just given."""
        request = candidate.request
        self._shares[candidate.owner_uid] += self._machine.dominant_share(
            request.memory_bytes * request.gpu_count, candidate.compute_share * request.gpu_count
        )

    def of(self, queue: Sequence[Candidate]) -> Iterator[Candidate]:
        """Yield every candidate once.

        Args:
            queue: In order of arrival, which decides between equals.
        """
        classes: dict[int, list[Candidate]] = defaultdict(list)
        for candidate in queue:
            classes[-candidate.request.priority].append(candidate)
        for _, candidates in sorted(classes.items()):
            yield from self._fairly(candidates)

    def _fairly(self, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
        """Between users the smallest share first, read anew at each turn."""
        rows: dict[int, list[tuple[float, int, Candidate]]] = defaultdict(list)
        for place, (rank, candidate) in enumerate(zip(self._ranks(candidates), candidates, strict=True)):
            rows[candidate.owner_uid].append((-rank, place, candidate))
        for row in rows.values():
            row.sort(reverse=True)
        users = [(self._weighed_share(uid), row[-1][:2], uid) for uid, row in rows.items()]
        heapq.heapify(users)
        while users:
            _, _, uid = users[0]
            row = rows[uid]
            yield row.pop()[2]
            if row:
                heapq.heapreplace(users, (self._weighed_share(uid), row[-1][:2], uid))
            else:
                heapq.heappop(users)

    def _ranks(self, candidates: Sequence[Candidate]) -> list[float]:
        """The more urgent, the larger. In one go: of ten thousand jobs each is ranked in each round."""
        now_seconds, rules = self._now_seconds, self._rules
        capacity_bytes = max(1, self._machine.capacity_bytes)
        return [
            (1.0 + max(0.0, now_seconds - each.eligible_at_seconds) / rules.ageing_seconds)
            * capacity_bytes
            / (
                max(each.duration_seconds or rules.default_duration_seconds, 1.0)
                * each.request.memory_bytes
                * each.request.gpu_count
            )
            for each in candidates
        ]

    def _weighed_share(self, uid: int) -> float:
        return self._shares[uid] / self._quotas.get(uid, NO_QUOTA).weight


MOST_SHARE = 0.25
"""Of all memory, that may count as gone first when one more goes first."""


class OverdueJobs:
    """Who may go first in one round."""

    def __init__(
        self,
        precedence: Precedence,
        capacity_bytes: int,
        quotas: Mapping[int, Quota],
        rules: OrderRules,
        now_seconds: float,
    ) -> None:
        """Start from who went first before. Arguments as of `TurnState`; `capacity_bytes` is of all GPUs."""
        self._reservation = precedence.reservation
        self._capacity_bytes = max(1, capacity_bytes)
        self._quotas = quotas
        self._rules = rules
        self._now_seconds = now_seconds
        self._all_weights = 1.0
        self._shares: dict[int, float] = {}
        for each in precedence.served:
            if each.counts(now_seconds):
                self._count(each.owner_uid, each.memory_bytes)

    def of(self, queue: Sequence[Candidate], planned: "frozenset[str] | set[str]") -> list[Candidate]:
        """Return the job that GPUs are kept for, and the oldest overdue job of each user, oldest first.

        Args:
            queue: In order of arrival.
            planned: Ids of the jobs of a plan, which are overdue later.
        """
        overdue = self._overdue(queue, planned)
        found: dict[int, Candidate] = {}
        for candidate in overdue:
            found.setdefault(candidate.owner_uid, candidate)
        self._all_weights = sum(self._weight(uid) for uid in found) or 1.0
        heads = list(found.values())
        if self._reservation is not None:
            kept = [candidate for candidate in queue if candidate.job_id == self._reservation.job_id]
            heads = kept + [candidate for candidate in heads if candidate not in kept]
        return heads

    def may_go_first(self, candidate: Candidate) -> bool:
        """Whether those that count leave it a turn: of the machine, and of its owner's part."""
        if self._reservation is not None and candidate.job_id == self._reservation.job_id:
            return True
        entitled = MOST_SHARE * self._weight(candidate.owner_uid) / self._all_weights
        return sum(self._shares.values()) < MOST_SHARE and self._shares.get(candidate.owner_uid, 0.0) < entitled

    def granted(self, candidate: Candidate) -> None:
        """Count one that goes first now."""
        self._count(candidate.owner_uid, candidate.request.memory_bytes * candidate.request.gpu_count)

    def _overdue(self, queue: Sequence[Candidate], planned: "frozenset[str] | set[str]") -> list[Candidate]:
        came_before = self._now_seconds - self._rules.patience_seconds
        late = (candidate for candidate in queue if candidate.eligible_at_seconds < came_before)
        overdue = sorted(late, key=lambda each: each.eligible_at_seconds)
        if not planned:
            return overdue
        planned_before = self._now_seconds - self._rules.planned_patience_seconds
        return [each for each in overdue if each.job_id not in planned or each.eligible_at_seconds < planned_before]

    def _count(self, uid: int, memory_bytes: int) -> None:
        self._shares[uid] = self._shares.get(uid, 0.0) + memory_bytes / self._capacity_bytes

    def _weight(self, uid: int) -> float:
        return self._quotas.get(uid, NO_QUOTA).weight


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
