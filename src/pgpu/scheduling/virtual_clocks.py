"""Virtual clocks: how much of the machine each user has had, and which user is next (start-time fair queueing).

A user's clock runs while the user's jobs hold slices: machine time, times the larger of a job's shares of all memory and of all
GPU time, divided by the user's weight. So 1.0 is the whole machine for a second. The user with the earliest clock is next; a
running job counts up to its expected end at once, and by its real run time in the end, so wrong predictions gain nothing.

Users compete within a priority, so each priority has a floor: the earliest clock of its active users, those of whom a job of this
priority waits for others, and while there are none the latest clock of all. A user that begins to wait there is at most
`credit_seconds` behind it, so neither a pause nor a job that waits at another priority earns more than a bounded lead.

Two further clocks divide the machine between *late* jobs, which are overdue behind a higher priority or a batch plan, and all
others: while there are late jobs they go first until they have had `LATE_SHARE` of the machine time since.

Sources: start-time fair queueing (Goyal et al., SIGCOMM'96); dominant shares (Ghodsi et al., NSDI'11).
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from pgpu.scheduling.admission_round import (
    NO_QUOTA,
    Candidate,
    Contender,
    Held,
    OrderRules,
    Quota,
    VirtualTime,
)
from pgpu.structs import Struct, replace

# Late jobs go first while they have had less than this part of the machine time since the first of them became late.
LATE_SHARE = 0.25


class Machine(Struct, frozen=True):
    """Sum of all GPUs, for dominant shares."""

    capacity_bytes: int
    gpu_count: int
    instance_bytes: Mapping[str, int] = {}
    """Memory of each MIG instance by UUID: any slice takes all of it."""

    def rate_of(self, held: Held) -> float:
        """Return the dominant share that a job holds: the larger of its shares of all memory and of all GPU time."""
        size_bytes = sum(self.instance_bytes.get(part.gpu_uuid, part.memory_bytes) for part in held.slices)
        compute_share = held.compute_share * len(held.slices)
        return max(size_bytes / max(1, self.capacity_bytes), compute_share / max(1, self.gpu_count))


def contenders_of(queue: Iterable[Candidate]) -> frozenset[Contender]:
    """Return UID and priority of each user with waiting jobs that need a GPU."""
    return frozenset({(each.owner_uid, each.request.priority) for each in queue if each.request.gpu_count})


class UserClocks:
    """The clocks of all users during one round."""

    def __init__(
        self,
        before: VirtualTime,
        contenders: Collection[Contender],
        held: Sequence[Held],
        machine: Machine,
        *,
        quotas: Mapping[int, Quota],
        rules: OrderRules,
        now_seconds: float,
    ) -> None:
        """Start a round.

        Args:
            before: Virtual time now, as the round before left it.
            contenders: Users with waiting jobs.
            held: Every job that holds slices.
            machine: What shares are relative to.
            quotas: By UID; only the weights are used.
            rules: Time constants.
            now_seconds: Seconds since the epoch.
        """
        self._before = before
        self._machine = machine
        self._quotas = quotas
        self._rules = rules
        self.contenders = contenders
        self.grant_count = 0
        self._clocks = dict(before.clocks)
        active: defaultdict[int, list[float]] = defaultdict(list)
        for uid, priority in contenders:
            if before.contenders.get((uid, priority)):
                active[priority].append(before.clocks.get(uid, 0.0))
        # While no user waits no lead grows: what a user had of an idle machine counts up to the credit afterwards.
        latest = max(before.clocks.values(), default=0.0)
        self._floors = {
            priority: max(before.floors.get(priority, 0.0), min(active[priority], default=latest))
            for priority in {priority for _, priority in contenders}
        }
        self._late_ids = set(before.late_ids)
        # What running jobs will have had at their expected ends; of late jobs and of the others not by weight.
        self._ahead: defaultdict[int, float] = defaultdict(float)
        self._lanes = {True: before.late_seconds or 0.0, False: before.other_seconds or 0.0}
        for each in held:
            duration = self._expected_seconds(each.duration_seconds)
            left_seconds = max(0.0, duration - max(0.0, now_seconds - each.granted_at_seconds))
            self._charge(each.owner_uid, machine.rate_of(each) * left_seconds, is_late=each.job_id in self._late_ids)

    def turn(self, contender: Contender) -> float:
        """Return the clock of a user at the expected ends of the user's running jobs; the least is next."""
        return self._start_tag(contender) + self._ahead[contender[0]]

    @property
    def turns(self) -> dict[Contender, float]:
        """`turn` of every user with waiting jobs."""
        return {contender: self.turn(contender) for contender in self.contenders}

    @property
    def is_late_first(self) -> bool:
        """Whether late jobs go before all others now."""
        return self._lanes[True] / LATE_SHARE <= self._lanes[False] / (1 - LATE_SHARE)

    def note_grant(self, candidate: Candidate, held: Held, *, is_late: bool) -> None:
        """Charge a job that starts, with what it holds then, up to its expected end."""
        self.grant_count += 1
        self._clocks[candidate.owner_uid] = self._start_tag(candidate.contender)
        expected_seconds = self._expected_seconds(candidate.duration_seconds)
        self._charge(candidate.owner_uid, self._machine.rate_of(held) * expected_seconds, is_late=is_late)
        if is_late:
            self._late_ids.add(candidate.job_id)

    def after(self, contenders: Mapping[Contender, bool], *, has_late: bool) -> VirtualTime:
        """Return the virtual time after the round, without what is only expected.

        Args:
            contenders: Users with jobs that go on waiting, and whether one of them waits for other jobs.
            has_late: Whether there were late jobs in the queue.
        """
        tags: defaultdict[int, list[float]] = defaultdict(list)
        for contender, is_active in contenders.items():
            tags[contender[1]] += [self._start_tag(contender)] if is_active else []
        floors = {priority: max(self._floors[priority], min(own, default=0.0)) for priority, own in tags.items()}
        late = other = None
        if has_late:
            # A late job that nothing can host earns no more than the credit for the late jobs after it.
            late, other = self._before.late_seconds or 0.0, self._before.other_seconds or 0.0
            other = min(other, late * (1 - LATE_SHARE) / LATE_SHARE + self._rules.credit_seconds)
        return VirtualTime(self._clocks, floors, contenders, late, other, frozenset(self._late_ids))

    def _start_tag(self, contender: Contender) -> float:
        uid, priority = contender
        return max(self._clocks.get(uid, 0.0), self._floors[priority] - self._rules.credit_seconds)

    def _expected_seconds(self, duration_seconds: float | None) -> float:
        # Infinite where a forecast asks what comes if jobs of unknown length never end: their users take turns all the same.
        if duration_seconds is None or math.isinf(duration_seconds):
            return self._rules.default_duration_seconds
        return duration_seconds

    def _charge(self, uid: int, machine_seconds: float, *, is_late: bool) -> None:
        self._ahead[uid] += machine_seconds / self._quotas.get(uid, NO_QUOTA).weight
        self._lanes[is_late] += machine_seconds


def advance(
    time: VirtualTime, held: Sequence[Held], machine: Machine, quotas: Mapping[int, Quota], seconds: float
) -> VirtualTime:
    """Return the virtual time some seconds later, while these jobs held their slices; the ledger does the same with its leases."""
    clocks, lanes = dict(time.clocks), {True: time.late_seconds, False: time.other_seconds}
    for each in held:
        used = machine.rate_of(each) * seconds
        clocks[each.owner_uid] = clocks.get(each.owner_uid, 0.0) + used / quotas.get(each.owner_uid, NO_QUOTA).weight
        lane = lanes[each.job_id in time.late_ids]
        lanes[each.job_id in time.late_ids] = None if lane is None else lane + used
    return replace(time, clocks=clocks, late_seconds=lanes[True], other_seconds=lanes[False])
