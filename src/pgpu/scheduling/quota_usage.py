"""What each user holds and may still be granted in one round, and the queue of jobs without a GPU, which only quotas bind.

While a user's first job waits for its quota, the user's later jobs start only if they do not delay it: they end before enough
of the quota is expected to be free, or fit into what the first job leaves spare.

Jobs without a GPU take no memory and no time of one, so they never delay a job of the other queue; only a user's quota of jobs
counts for both. Order: priority, then the user with the fewest such jobs relative to the weight, then the oldest job.
"""

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

from pgpu.scheduling.admission_round import NO_QUOTA, Candidate, Cause, Grant, Held, OrderRules, Quota, by_priority
from pgpu.scheduling.reservations import NEVER, expected_ends
from pgpu.structs import Struct, field
from pgpu.units import format_memory, format_time


class QuotaLimit(Enum):
    """Why a quota keeps a job waiting."""

    FULL = "full"
    """Its owner's quota is used up."""

    KEPT = "kept"
    """It would delay the job that its owner's quota is reserved for."""


class _Usage(Struct):
    memory_bytes: int = 0
    jobs: int = 0

    def add(self, held: Held) -> None:
        self.memory_bytes += _memory_bytes(held)
        self.jobs += 1


class _Reserved(Struct):
    """The part of one user's quota that is reserved for a job from a time on."""

    job_id: str
    start_seconds: float
    spare_bytes: float
    spare_jobs: float


class QuotaUsage:
    """Quotas and usage of all users in one round."""

    def __init__(
        self, held: Sequence[Held], quotas: Mapping[int, Quota], rules: OrderRules, now_seconds: float
    ) -> None:
        """Start from what is held. Arguments as for `admit`."""
        self._held = list(held)
        self._quotas = quotas
        self._rules = rules
        self._now_seconds = now_seconds
        self._kept: dict[int, _Reserved] = {}
        self._owned: defaultdict[int, _Usage] = defaultdict(_Usage)
        for each in held:
            self._owned[each.owner_uid].add(each)

    def limit_on(self, candidate: Candidate) -> QuotaLimit | None:
        """Return why its owner's quota keeps a job waiting; None if it does not."""
        quota = self._quotas.get(candidate.owner_uid)
        if quota is None:
            return None
        if self._is_spent(quota, candidate):
            return QuotaLimit.FULL
        own, wanted = self._owned[candidate.owner_uid], _wanted_bytes(candidate)
        if quota.memory_bytes is not None and own.memory_bytes + wanted > quota.memory_bytes:
            return QuotaLimit.FULL
        if quota.jobs is not None and own.jobs >= quota.jobs:
            return QuotaLimit.FULL
        # As with GPUs (`Reservation.admits`): a later job may use what its owner's first job waits for if it ends in time.
        kept = self._kept.get(candidate.owner_uid)
        if (
            kept is None
            or kept.job_id == candidate.job_id
            or candidate.end_seconds(self._now_seconds) <= kept.start_seconds
        ):
            return None
        return QuotaLimit.KEPT if wanted > kept.spare_bytes or kept.spare_jobs < 1 else None

    def left_bytes(self, uid: int) -> int | None:
        """Return how much memory a user may still be granted; None for no limit."""
        quota = self._quotas.get(uid)
        if quota is None or quota.memory_bytes is None:
            return None
        return quota.memory_bytes - self._owned[uid].memory_bytes

    def has_unreserved(self, uid: int) -> bool:
        """Whether a user has a quota that is reserved for no job yet."""
        return uid in self._quotas and uid not in self._kept

    def keep(self, candidate: Candidate, *, since_seconds: float | None = None) -> None:
        """Reserve its owner's quota, which is reserved for no job yet, for a job that waits.

        Args:
            candidate: The job.
            since_seconds: For an overdue job, since when. Then predicted ends let no later job in, and jobs that were granted
                since are assumed to stay, so that the job starts once the others have ended.
        """
        quota = self._quotas[candidate.owner_uid]
        # Until the next period the end of no job lets it start.
        if self._is_spent(quota, candidate):
            return
        kept = self._reserve(candidate, quota, since_seconds)
        if kept is not None:
            self._kept[candidate.owner_uid] = kept

    def note_grant(self, candidate: Candidate, held: Held) -> None:
        self._owned[candidate.owner_uid].add(held)
        self._held.append(held)
        kept = self._kept.get(candidate.owner_uid)
        if kept is None:
            return
        if kept.job_id == candidate.job_id:
            del self._kept[candidate.owner_uid]
        elif candidate.end_seconds(self._now_seconds) > kept.start_seconds:  # It takes from what the first job leaves.
            kept.spare_bytes -= _wanted_bytes(candidate)
            kept.spare_jobs -= 1

    def explain(self, candidate: Candidate, limit: QuotaLimit) -> str:
        """Format what a job waits for."""
        quota, own = self._quotas[candidate.owner_uid], self._owned[candidate.owner_uid]
        if limit is QuotaLimit.KEPT and candidate.owner_uid in self._kept:
            return f"waits its turn: its owner's quota is kept for job {self._kept[candidate.owner_uid].job_id}"
        if quota.gpu_hours is not None and self._is_spent(quota, candidate):
            hours = quota.gpu_hours
            return (
                f"waits for its owner's next {hours.period}, which begins on {format_time(hours.renewed_at_seconds)}:"
                f" {hours.used:.1f} of {hours.most:g} GPU hours a {hours.period} are used"
            )
        wanted_bytes = _wanted_bytes(candidate)
        if quota.memory_bytes is not None and wanted_bytes > quota.memory_bytes:
            asked, most = format_memory(wanted_bytes), format_memory(quota.memory_bytes)
            return f"waits for a larger quota of its owner: {asked} were asked for, and the quota is {most}"
        if quota.jobs is not None and own.jobs >= quota.jobs:
            return f"waits for its owner's other jobs: {own.jobs} run, and the quota is {quota.jobs}"
        most = format_memory(quota.memory_bytes or 0)
        return f"waits for its owner's other jobs: they hold {format_memory(own.memory_bytes)} of a quota of {most}"

    def _is_spent(self, quota: Quota, candidate: Candidate) -> bool:
        # A parked job has begun already, and goes on as those that run.
        hours, begins = quota.gpu_hours, bool(candidate.request.gpu_count) and candidate.gpu_uuid is None
        return hours is not None and begins and hours.is_spent(self._now_seconds)

    def _reserve(self, candidate: Candidate, quota: Quota, since_seconds: float | None) -> _Reserved | None:
        """Find when its owner's running jobs will have freed enough; None if never, since the quota is too small."""
        wanted_bytes = _wanted_bytes(candidate)
        own = self._owned[candidate.owner_uid]
        left_bytes = math.inf if quota.memory_bytes is None else quota.memory_bytes - own.memory_bytes
        left_jobs = math.inf if quota.jobs is None else quota.jobs - own.jobs
        left_bytes, left_jobs = left_bytes - wanted_bytes, left_jobs - 1
        start_seconds = self._now_seconds
        for end_seconds, held in self._ends(candidate.owner_uid, since_seconds):
            if left_bytes >= 0 and left_jobs >= 0:
                break
            start_seconds = end_seconds
            left_bytes, left_jobs = left_bytes + _memory_bytes(held), left_jobs + 1
        if since_seconds is not None:
            # A start in the past, so that no predicted end lets another job in.
            has_memory = quota.memory_bytes is None or wanted_bytes <= quota.memory_bytes
            can_hold = has_memory and (quota.jobs is None or quota.jobs > 0)
            return _Reserved(candidate.job_id, -NEVER, left_bytes, left_jobs) if can_hold else None
        if left_bytes < 0 or left_jobs < 0:
            return None
        return _Reserved(candidate.job_id, start_seconds, left_bytes, left_jobs)

    def _ends(self, uid: int, since_seconds: float | None) -> list[tuple[float, Held]]:
        # Jobs granted after `since_seconds` are assumed to stay.
        own = [each for each in self._held if each.owner_uid == uid]
        sooner = [each for each in own if since_seconds is None or each.granted_at_seconds < since_seconds]
        ends = expected_ends(sooner, self._rules.default_duration_seconds, self._now_seconds)
        return sorted(ends, key=lambda pair: pair[0])


def _memory_bytes(held: Held) -> int:
    return sum(part.memory_bytes for part in held.slices)


def _wanted_bytes(candidate: Candidate) -> int:
    return candidate.request.memory_bytes * candidate.request.gpu_count


# Default limit: each such job is a command of its own, and most use some MiB at least.
MOST_AT_ONCE = 128

_CAUSES = {QuotaLimit.FULL: Cause.QUOTA, QuotaLimit.KEPT: Cause.QUOTA_TURN}


class CpuAdmission(Struct):
    """Outcome of one round for jobs without a GPU."""

    grants: list[Grant] = field(default_factory=list)
    waits: list[tuple[Candidate, Cause]] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)


def split_queue(queue: Sequence[Candidate]) -> tuple[Sequence[Candidate], Sequence[Candidate]]:
    """Return the jobs with GPUs and the jobs without, each in the order of the queue."""
    rest = [candidate for candidate in queue if candidate.request.is_without_gpu]
    return ([candidate for candidate in queue if candidate.request.gpu_count], rest) if rest else (queue, rest)


def admit_without_gpu(
    queue: Sequence[Candidate],
    held: Sequence[Held],
    quotas: Mapping[int, Quota],
    allowances: QuotaUsage,
    now_seconds: float,
    *,
    most_at_once: int,
) -> CpuAdmission:
    """Decide which jobs without a GPU start now.

    Args:
        queue: Waiting jobs without a GPU, oldest first.
        held: Every granted job, with or without a GPU.
        quotas: By UID; a user that is missing has none.
        allowances: Quota usage of this round; grants are counted there.
        now_seconds: Seconds since the epoch.
        most_at_once: Limit on running jobs without a GPU.
    """
    found = CpuAdmission()
    line = _CpuQueue(held, quotas)
    for candidate in line.in_turn(queue):
        if line.count >= most_at_once:
            cause: Cause | None = Cause.CROWD
        else:
            limit = allowances.limit_on(candidate)
            cause = None if limit is None else _CAUSES[limit]
        if cause is None:
            started = Held(candidate.job_id, candidate.owner_uid, (), now_seconds, 0.0, candidate.duration_seconds)
            allowances.note_grant(candidate, started)
            line.note_start(candidate.owner_uid)
            found.grants.append(Grant(candidate.job_id, ()))
        elif candidate.deadline_seconds is not None and candidate.deadline_seconds <= now_seconds:
            found.expired.append(candidate.job_id)
        else:
            found.waits.append((candidate, cause))
    return found


class _CpuQueue:
    def __init__(self, held: Sequence[Held], quotas: Mapping[int, Quota]) -> None:
        self.count = 0
        self._quotas = quotas
        self._running: defaultdict[int, int] = defaultdict(int)
        for each in held:
            if not each.slices:
                self.note_start(each.owner_uid)

    def note_start(self, uid: int) -> None:
        self.count += 1
        self._running[uid] += 1

    def in_turn(self, queue: Sequence[Candidate]) -> Iterator[Candidate]:
        """Yield every job once; a job that started meanwhile counts for its user."""
        for equals in by_priority(queue):
            yield from self._by_weighted_jobs(equals)

    def _by_weighted_jobs(self, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
        """Yield jobs of one priority: each time the oldest job of the user with the fewest running jobs by weight."""
        rows: dict[int, deque[tuple[int, Candidate]]] = defaultdict(deque)
        for place, candidate in enumerate(candidates):
            rows[candidate.owner_uid].append((place, candidate))
        # A heap of users. The count is read again after each yield, since the candidate may have started.
        users = [(self._weighted_jobs(uid), row[0][0], uid) for uid, row in rows.items()]
        heapq.heapify(users)
        while users:
            uid = users[0][2]
            row = rows[uid]
            yield row.popleft()[1]
            if row:
                heapq.heapreplace(users, (self._weighted_jobs(uid), row[0][0], uid))
            else:
                heapq.heappop(users)

    def _weighted_jobs(self, uid: int) -> float:
        return self._running[uid] / self._quotas.get(uid, NO_QUOTA).weight
