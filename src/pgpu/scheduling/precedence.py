"""Who goes before everybody else: of those that have waited longer than anybody should, the oldest of each user.

Only so many that priorities and users' shares keep most of the machine, however long the queue: what goes first counts
until it has ended and three times as long again. Only older jobs go before a job this way, so whoever comes later, its wait is
bounded. It refuses to grant and to keep memory: `admission` and `claims` do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pgpu.scheduling.candidate import NO_QUOTA, Candidate, Quota
from pgpu.scheduling.order import OrderRules

MOST_SHARE = 0.25
"""Of all memory, that may count as gone first when one more goes first."""

COUNTED_RUNS = 4
"""A run counts so many times as long as it was: so a sixteenth of the memory is given out this way on average, and a quarter of
the time where one job fills the machine."""

LONGEST_SECONDS = 4 * 3600.0
"""So much of a run counts at most: a job that never ends keeps nobody from going first for ever."""


@dataclass(frozen=True, slots=True)
class OverdueReservation:
    """GPUs that are kept for one overdue job, from round to round, until it starts."""

    job_id: str
    gpu_uuids: tuple[str, ...]
    since_seconds: float
    """When they were chosen, in seconds since the epoch: what was granted there later must not delay the job."""

    start_seconds: float
    """When it was first thought to start; jobs that end by then go before it, and later ones never."""

    until_seconds: float
    """Other GPUs are looked for from then on: one that nobody leaves keeps the job waiting no longer."""

    unable_since_seconds: float | None = None
    """Since when they could not host the job; None while they could."""


@dataclass(frozen=True, slots=True)
class ServedJob:
    """A job that went first."""

    owner_uid: int
    memory_bytes: int
    """Over all its GPUs."""

    granted_at_seconds: float
    ended_at_seconds: float | None = None
    """None while it holds memory."""

    def counts(self, now_seconds: float) -> bool:
        """Whether it keeps others from going first: while it runs, and for some time after."""
        run_seconds = (self.ended_at_seconds or now_seconds) - self.granted_at_seconds
        if self.ended_at_seconds is None and run_seconds < LONGEST_SECONDS:
            return True
        return now_seconds - self.granted_at_seconds < COUNTED_RUNS * min(run_seconds, LONGEST_SECONDS)


@dataclass(frozen=True, slots=True)
class Precedence:
    """What one round tells the next."""

    reservation: OverdueReservation | None = None
    served: tuple[ServedJob, ...] = ()
    """Those that may still count."""


NO_PRECEDENCE = Precedence()


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
