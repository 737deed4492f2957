"""Order in which one round of admission considers waiting jobs.

By priority; within a priority by user, smallest dominant share first; within a user by memory-time, with a rank that grows with the
wait. Two exceptions come before that order: jobs of a batch plan keep the order of their plan, and the oldest overdue job
of each user goes first. Overdue jobs get only a limited share of the machine, so priorities and fair shares decide about
most of it however long the queue is; and only older jobs can overtake a job this way, so its wait is bounded.

Sources: dominant resource fairness (Ghodsi et al., NSDI'11), applied to memory and compute; shortest job first on memory-time,
with ageing.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from pgpu.model import Slice
from pgpu.scheduling.admission_round import NO_QUOTA, Candidate, Held, Precedence, Quota, by_priority
from pgpu.structs import Struct, field

# An overdue job goes first only while jobs that went first count for less than this share of all memory.
MOST_SHARE = 0.25


class OrderRules(Struct, frozen=True):
    """Time constants of the order."""

    default_duration_seconds: float = 600.0
    """Assumed for a job without history. Default: a first short run of a model."""

    ageing_seconds: float = 600.0
    """A job's rank doubles after this wait. Default: as long as a job without history."""

    patience_seconds: float = 1800.0
    """A job is overdue after this wait. Default: half an hour."""

    planned_patience_seconds: float = 86400.0
    """The same for a job of a batch plan, which may be delayed so that the whole batch ends sooner. Default: a day, longer
    than a batch that runs overnight."""

    faith_seconds: float = 4 * 3600.0
    """An overdue job keeps its reserved GPUs at least this long. Default: four hours, longer than most jobs of a lab."""


class Machine(Struct, frozen=True):
    """Sum of all GPUs, for dominant shares."""

    capacity_bytes: int
    gpu_count: int

    def dominant_share(self, memory_bytes: int, compute_share: float) -> float:
        """Return the larger of the shares of all memory and of all GPU time; `compute_share` is summed over GPUs."""
        return max(memory_bytes / max(1, self.capacity_bytes), compute_share / max(1, self.gpu_count))


class FairOrder:
    """Yields candidates one by one; a grant between two of them moves its user back."""

    def __init__(
        self,
        machine: Machine,
        shares: Mapping[int, float],
        quotas: Mapping[int, Quota],
        rules: OrderRules,
        now_seconds: float,
    ) -> None:
        """Start a round.

        Args:
            machine: What shares are relative to.
            shares: Dominant share that each user holds now, by UID.
            quotas: By UID; only the weights are used.
            rules: Time constants.
            now_seconds: Seconds since the epoch.
        """
        self._machine = machine
        self._shares = defaultdict(float, shares)
        self._quotas = quotas
        self._rules = rules
        self._now_seconds = now_seconds

    def note_grant(self, candidate: Candidate) -> None:
        """Add a grant to its user's share."""
        request = candidate.request
        self._shares[candidate.owner_uid] += self._machine.dominant_share(
            request.memory_bytes * request.gpu_count, candidate.compute_share * request.gpu_count
        )

    def of(self, queue: Sequence[Candidate]) -> Iterator[Candidate]:
        """Yield every candidate once.

        Args:
            queue: In order of arrival, which decides between equal ranks.
        """
        for equals in by_priority(queue):
            yield from self._by_share(equals)

    def _by_share(self, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
        """Yield jobs of one priority: each time the most urgent job of the user with the smallest share by weight."""
        rows: dict[int, list[tuple[float, int, Candidate]]] = defaultdict(list)
        for place, (rank, candidate) in enumerate(zip(self._ranks(candidates), candidates, strict=True)):
            rows[candidate.owner_uid].append((-rank, place, candidate))
        for row in rows.values():
            row.sort(reverse=True)
        # A heap of users by share. The share is read again after each yield, since the candidate may have been granted.
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
        # rank = (1 + wait / ageing) / (duration * memory), larger is more urgent. One list comprehension: each round
        # ranks every job of a queue that may be ten thousand long.
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


class OverdueJobs:
    """Jobs that may go first in one round."""

    def __init__(
        self,
        precedence: Precedence,
        capacity_bytes: int,
        quotas: Mapping[int, Quota],
        rules: OrderRules,
        now_seconds: float,
    ) -> None:
        """Start from the state of the round before. Arguments as for `FairOrder`; `capacity_bytes` is of all GPUs."""
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
        """Return the job with reserved GPUs, then the oldest overdue job of each user, oldest first.

        Args:
            queue: In order of arrival.
            planned: Ids of the jobs of a batch plan, which are overdue later.
        """
        came_before = self._now_seconds - self._rules.patience_seconds
        planned_before = self._now_seconds - self._rules.planned_patience_seconds
        late = (candidate for candidate in queue if candidate.eligible_at_seconds < came_before)
        # Of each user only the oldest: a user with many overdue jobs would crowd out the others.
        heads: dict[int, Candidate] = {}
        for each in sorted(late, key=lambda each: each.eligible_at_seconds):
            if each.job_id not in planned or each.eligible_at_seconds < planned_before:
                heads.setdefault(each.owner_uid, each)
        self._all_weights = sum(self._weight(uid) for uid in heads) or 1.0
        if self._reservation is None:
            return list(heads.values())
        kept = [candidate for candidate in queue if candidate.job_id == self._reservation.job_id]
        return kept + [candidate for candidate in heads.values() if candidate not in kept]

    def may_go_first(self, candidate: Candidate) -> bool:
        """Whether jobs that went first leave room for one more: in the share of all users, and in its owner's part."""
        if self._reservation is not None and candidate.job_id == self._reservation.job_id:
            return True
        # The candidate itself is not counted, so one job may exceed the share: otherwise a large one could never go first.
        entitled = MOST_SHARE * self._weight(candidate.owner_uid) / self._all_weights
        return sum(self._shares.values()) < MOST_SHARE and self._shares.get(candidate.owner_uid, 0.0) < entitled

    def note_grant(self, candidate: Candidate) -> None:
        """Count a job that goes first now."""
        self._count(candidate.owner_uid, candidate.request.memory_bytes * candidate.request.gpu_count)

    def _count(self, uid: int, memory_bytes: int) -> None:
        self._shares[uid] = self._shares.get(uid, 0.0) + memory_bytes / self._capacity_bytes

    def _weight(self, uid: int) -> float:
        return self._quotas.get(uid, NO_QUOTA).weight


class BatchPlan(Struct, frozen=True):
    """Plan of a batch: whenever something is free, jobs that fit start in this order.

    It names jobs but no times, so it stays valid when jobs end early or late.
    """

    order: tuple[str, ...]
    """Ids of the jobs."""

    most_at_once: int = 0
    """Most jobs on one GPU, even if more fit; 0 for as many as fit."""

    holds: Mapping[str, str] = field(default_factory=dict)
    """By id of a job: the id of an earlier job in the order that must start before it."""

    end_seconds: float = 0.0
    """Predicted end of the last job, counted from the time of planning."""

    least_seconds: float = 0.0
    """Lower bound for the end of any plan; equal to `end_seconds` if this one is known to be optimal."""


NO_PLAN = BatchPlan(())


class PlannedOrder:
    """State of a batch plan during one round."""

    def __init__(self, plan: BatchPlan, held: Sequence[Held]) -> None:
        self._plan = plan
        self._places = {job_id: place for place, job_id in enumerate(plan.order)}
        self._waiting: set[str] = set()
        self._jobs_on = Counter(part.gpu_uuid for each in held for part in each.slices)

    def __bool__(self) -> bool:
        return bool(self._places)

    def first(self, queue: Sequence[Candidate]) -> list[Candidate]:
        """Return the planned jobs of one priority, in the order of the plan."""
        planned = [candidate for candidate in queue if self.contains(candidate)]
        return sorted(planned, key=lambda each: self._places[each.job_id])

    def contains(self, candidate: Candidate) -> bool:
        return candidate.job_id in self._places

    def holds_back(self, candidate: Candidate) -> bool:
        """Whether a job that must start first was considered in this round and still waits."""
        # Only jobs of this round are in `_waiting`: a hold on a job that has started, ended or gone has no effect.
        return self._plan.holds.get(candidate.job_id) in self._waiting

    def has_enough(self, gpu_uuid: str) -> bool:
        """Whether one more job on a GPU would delay the end of the batch."""
        return 0 < self._plan.most_at_once <= self._jobs_on[gpu_uuid]

    def note_grant(self, slices: Sequence[Slice]) -> None:
        """Count a job that starts."""
        self._jobs_on.update(part.gpu_uuid for part in slices)

    def note_wait(self, candidate: Candidate) -> None:
        """Note a job that was considered and waits."""
        self._waiting.add(candidate.job_id)
