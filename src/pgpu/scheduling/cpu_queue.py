"""Admission of jobs without a GPU: a queue of its own with a limit on their number.

They take no memory and no time of a GPU, so they never delay a job of the other queue; only a user's quota of jobs counts for
both. Order: priority, then the user with the fewest such jobs relative to the weight, then the oldest job.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from pgpu.scheduling.admission_round import NO_QUOTA, Candidate, Cause, Grant, Held, Quota
from pgpu.scheduling.quota_usage import QuotaLimit, QuotaUsage

# Default limit: each such job is a supervisor and a command of its own, some 30 MiB at least.
MOST_AT_ONCE = 128

_CAUSES = {QuotaLimit.FULL: Cause.QUOTA, QuotaLimit.KEPT: Cause.QUOTA_TURN}


@dataclass(slots=True)
class CpuAdmission:
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
    line = _Line(held, quotas)
    for candidate in line.in_turn(queue):
        if line.count >= most_at_once:
            cause: Cause | None = Cause.CROWD
        else:
            bar = allowances.bar(candidate)
            cause = None if bar is None else _CAUSES[bar]
        if cause is None:
            started = Held(candidate.job_id, candidate.owner_uid, (), now_seconds, 0.0, candidate.duration_seconds)
            allowances.granted(candidate, started)
            line.started(candidate.owner_uid)
            found.grants.append(Grant(candidate.job_id, ()))
        elif candidate.deadline_seconds is not None and candidate.deadline_seconds <= now_seconds:
            found.expired.append(candidate.job_id)
        else:
            found.waits.append((candidate, cause))
    return found


class _Line:
    """Running jobs without a GPU by user, and the order of the waiting ones."""

    def __init__(self, held: Sequence[Held], quotas: Mapping[int, Quota]) -> None:
        self.count = 0
        self._quotas = quotas
        self._running: defaultdict[int, int] = defaultdict(int)
        for each in held:
            if not each.slices:
                self.started(each.owner_uid)

    def started(self, uid: int) -> None:
        self.count += 1
        self._running[uid] += 1

    def in_turn(self, queue: Sequence[Candidate]) -> Iterator[Candidate]:
        """Yield every job once; a job that started meanwhile counts for its user."""

        def rank(candidate: Candidate) -> int:
            return -candidate.request.priority

        for _, equals in groupby(sorted(queue, key=rank), key=rank):
            yield from self._fairly(equals)

    def _fairly(self, candidates: Iterator[Candidate]) -> Iterator[Candidate]:
        rows: dict[int, deque[tuple[int, Candidate]]] = defaultdict(deque)
        for place, candidate in enumerate(candidates):
            rows[candidate.owner_uid].append((place, candidate))
        users = [(self._weighed(uid), row[0][0], uid) for uid, row in rows.items()]
        heapq.heapify(users)
        while users:
            uid = users[0][2]
            row = rows[uid]
            yield row.popleft()[1]
            if row:
                heapq.heapreplace(users, (self._weighed(uid), row[0][0], uid))
            else:
                heapq.heappop(users)

    def _weighed(self, uid: int) -> float:
        return self._running[uid] / self._quotas.get(uid, NO_QUOTA).weight
