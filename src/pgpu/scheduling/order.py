"""Order in which one round of admission considers waiting jobs.

By priority; within a priority by user, the earliest clock first (`virtual_clocks`); within a user by memory-time in doublings, plus
the time of arrival in units of `ageing_seconds`. That key of a job never changes, so a job of one user is only overtaken by smaller
ones that come within a limited time. Jobs of a batch plan keep the order of their plan and go before others of their priority.
Jobs that are overdue behind a higher priority or a plan are *late*: they go first until they have had a part of the machine.

Source: shortest job first on memory-time, with exponential ageing.
"""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from pgpu.model import Slice
from pgpu.scheduling.admission_round import Candidate, Held, OrderRules, by_priority
from pgpu.scheduling.virtual_clocks import UserClocks
from pgpu.structs import Struct, field


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

    def leave_out(self, job_ids: Collection[str]) -> None:
        """Treat these jobs as ones of no plan."""
        self._places = {job_id: place for job_id, place in self._places.items() if job_id not in job_ids}

    def first(self, queue: Sequence[Candidate]) -> list[Candidate]:
        """Return the planned jobs of one priority, in the order of the plan."""
        planned = [candidate for candidate in queue if self.contains(candidate)]
        return sorted(planned, key=lambda each: self._places[each.job_id])

    def contains(self, candidate: Candidate) -> bool:
        return candidate.job_id in self._places

    def holds_back(self, candidate: Candidate) -> bool:
        """Whether a job that must start first was considered in this round and still waits."""
        # Only jobs of this round are in `_waiting`: a hold on a job that has started, ended or gone has no effect.
        return self.contains(candidate) and self._plan.holds.get(candidate.job_id) in self._waiting

    def has_enough(self, gpu_uuid: str) -> bool:
        """Whether one more job on a GPU would delay the end of the batch."""
        return 0 < self._plan.most_at_once <= self._jobs_on[gpu_uuid]

    def note_grant(self, slices: Sequence[Slice]) -> None:
        """Count a job that starts."""
        self._jobs_on.update(part.gpu_uuid for part in slices)

    def note_wait(self, candidate: Candidate) -> None:
        """Note a job that was considered and waits."""
        self._waiting.add(candidate.job_id)


class RoundOrder:
    """Yields candidates one by one; a grant between two of them moves its user back."""

    def __init__(self, clocks: UserClocks, planned: PlannedOrder, rules: OrderRules, now_seconds: float) -> None:
        """Start a round.

        Args:
            clocks: Moved by the grants of the round.
            planned: Jobs of a batch plan; late ones are taken out of it.
            rules: Time constants.
            now_seconds: Seconds since the epoch.
        """
        self.late_ids: frozenset[str] = frozenset()
        self._clocks = clocks
        self._planned = planned
        self._rules = rules
        self._now_seconds = now_seconds
        self._overdue_before_seconds = now_seconds - rules.patience_seconds

    def of(self, queue: Sequence[Candidate]) -> Iterator[Candidate]:
        """Yield every candidate once.

        Args:
            queue: In order of arrival, which decides between equal keys.
        """
        top = math.inf if self._planned else max((candidate.request.priority for candidate in queue), default=0)
        late = [each for each in queue if each.request.priority < top and self.is_overdue(each)]
        self.late_ids = frozenset(candidate.job_id for candidate in late)
        self._planned.leave_out(self.late_ids)
        others = [candidate for candidate in queue if candidate.job_id not in self.late_ids] if late else queue
        # Late jobs of all priorities are in one order, or those of the lowest would starve.
        lanes = {True: self._by_clock(late), False: self._by_priority(others)}
        while lanes:
            is_late = self._clocks.is_late_first if len(lanes) > 1 else next(iter(lanes))
            candidate = next(lanes[is_late], None)
            if candidate is None:
                del lanes[is_late]
            else:
                yield candidate

    def is_overdue(self, candidate: Candidate) -> bool:
        """Whether a job has waited longer than any should."""
        if self._planned and self._planned.contains(candidate):
            return candidate.eligible_at_seconds < self._now_seconds - self._rules.planned_patience_seconds
        return candidate.eligible_at_seconds < self._overdue_before_seconds

    def _by_priority(self, queue: Sequence[Candidate]) -> Iterator[Candidate]:
        """Yield of each priority the jobs of the plan, then the others."""
        for equals in by_priority(queue):
            if self._planned:
                yield from self._planned.first(equals)
                yield from self._by_clock([each for each in equals if not self._planned.contains(each)])
            else:
                yield from self._by_clock(equals)

    def _by_clock(self, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
        """Yield each time the first job of the user with the earliest clock."""
        rows: dict[int, list[tuple[float, int, Candidate]]] = defaultdict(list)
        for place, (key, candidate) in enumerate(zip(self._keys(candidates), candidates, strict=True)):
            rows[candidate.owner_uid].append((key, place, candidate))
        for row in rows.values():
            row.sort(reverse=True)

        clocks = self._clocks

        def standing(uid: int) -> tuple[float, float, int, int, int]:
            key, number, candidate = rows[uid][-1]
            return clocks.turn(candidate.contender), key, number, uid, clocks.grant_count

        users = [standing(uid) for uid in rows]
        heapq.heapify(users)
        while users:
            *_, uid, grant_count = users[0]
            # A grant since, of this iterator or another one, may have moved the user back.
            if grant_count != clocks.grant_count:
                heapq.heapreplace(users, standing(uid))
                continue
            row, (turn, key, *_) = rows[uid], users[0]
            contender = row[-1][2].contender
            yield row.pop()[2]
            # Elements of an array follow each other without a look at the heap, where no other user's job can come between them.
            others = min(users[1:3], default=None)
            is_ahead = others is None or (turn, key) < others[:2]
            while is_ahead and row and row[-1][0] == key and grant_count == clocks.grant_count:
                if row[-1][2].contender != contender:
                    break
                yield row.pop()[2]
            if row:
                heapq.heapreplace(users, standing(uid))
            else:
                heapq.heappop(users)

    def _keys(self, candidates: Sequence[Candidate]) -> list[float]:
        # The least goes first. One list comprehension: a round computes this for a queue that may be ten thousand long.
        rules = self._rules
        return [
            each.eligible_at_seconds / rules.ageing_seconds
            + math.log2(
                max(each.duration_seconds or rules.default_duration_seconds, 1.0)
                * each.request.memory_bytes
                * each.request.gpu_count
            )
            for each in candidates
        ]
