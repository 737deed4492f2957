"""Which jobs without a GPU start now: as many at a time as may, in a line of their own.

They take no memory and no time of a GPU, so nobody in the other line waits for them or is overtaken by them; only what a
user may have of jobs at all is one for both. By priority, then the user who runs the fewest such jobs, then the oldest.
It refuses to know how much of the host they use: that is the operator's limit on their number.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from pgpu.scheduling.admission_round import NO_QUOTA, Candidate, Cause, Grant, Held, Quota
from pgpu.scheduling.quota_usage import QuotaLimit, QuotaUsage

MOST_AT_ONCE = 128
"""So many run where nobody says otherwise: each is a supervisor and a command of its own, some 30 MiB at least."""


@dataclass(slots=True)
class CpuAdmission:
    """One round's answer for the jobs without a GPU."""

    grants: list[Grant] = field(default_factory=list)
    waits: list[tuple[Candidate, Cause]] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)


def split_queue(queue: Sequence[Candidate]) -> tuple[Sequence[Candidate], Sequence[Candidate]]:
    """Return those that want GPUs, and those that want none, each in the order of the queue."""
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
    """Decide which of them start now.

    Args:
        queue: Those that wait, none of which wants a GPU, oldest first.
        held: Every job that was granted, with or without a GPU.
        quotas: By UID; who is missing has none.
        allowances: What users may still be granted in this round; what starts is counted there.
        now_seconds: Seconds since the epoch.
        most_at_once: How many may run at a time.
    """
    found = CpuAdmission()
    line = _Line(held, quotas)
    for candidate in line.in_turn(queue):
        cause = _hindrance(candidate, line, allowances, most_at_once)
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


def _hindrance(candidate: Candidate, line: "_Line", allowances: QuotaUsage, most_at_once: int) -> Cause | None:
    if line.count >= most_at_once:
        return Cause.CROWD
    bar = allowances.bar(candidate)
    return None if bar is None else _CAUSES[bar]


_CAUSES = {QuotaLimit.FULL: Cause.QUOTA, QuotaLimit.KEPT: Cause.QUOTA_TURN}


class _Line:
    """Who runs how many, and whose turn it is."""

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
        for _, equals in groupby(sorted(queue, key=_rank), key=_rank):
            yield from self._fairly(list(equals))

    def _fairly(self, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
        """Between users the one who runs fewest, read anew at each turn; a user's own in order of arrival."""
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


def _rank(candidate: Candidate) -> int:
    return -candidate.request.priority
