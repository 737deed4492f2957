"""In which order waiting jobs are looked at.

By priority; of one priority the user who holds the smallest share of the machine; of that user's jobs the one with the
smallest memory-time, whose rank grows with its wait. Who goes before this order because nobody should wait so long, it
refuses to know: `precedence` does.

Sources: dominant resource fairness (Ghodsi et al., NSDI'11), applied to memory and compute; shortest job first on
memory-time with ageing.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pgpu.scheduling.candidate import NO_QUOTA, Candidate, Quota


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
