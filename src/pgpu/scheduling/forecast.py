"""Expected start of each waiting job: the coming rounds of admission, simulated with the predicted durations."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from pgpu.scheduling.admission import admit
from pgpu.scheduling.admission_round import (
    NO_PRECEDENCE,
    Admission,
    Candidate,
    Held,
    Precedence,
    Quota,
    ServedJob,
)
from pgpu.scheduling.capacity import GpuRoom, taken_bytes
from pgpu.scheduling.cpu_queue import MOST_AT_ONCE
from pgpu.scheduling.order import NO_PLAN, BatchPlan, OrderRules
from pgpu.scheduling.reservations import expected_end_seconds

# Only this many jobs of the queue are simulated; for later ones a prediction is not worth the computing time.
MOST_JOBS = 200

# A job that is not in the queue yet, and the ids of the jobs that must end before it.
Later = tuple[Candidate, Collection[str]]


def expected_starts(
    rooms: Sequence[GpuRoom],
    queue: Sequence[Candidate],
    now_seconds: float,
    *,
    held: Sequence[Held] = (),
    quotas: Mapping[int, Quota] | None = None,
    rules: OrderRules | None = None,
    plan: BatchPlan = NO_PLAN,
    precedence: Precedence = NO_PRECEDENCE,
    later: Sequence[Later] = (),
    most_without_gpu: int = MOST_AT_ONCE,
) -> dict[str, float]:
    """Return when waiting jobs are expected to start, by job id, in seconds since the epoch.

    A job of unknown length is assumed to run for the default duration of the rules. Missing are jobs behind the first 200 of
    today's round, and those for which no known end makes room.

    Args:
        rooms: As for `admit`, like the other arguments unless noted.
        queue: Waiting jobs.
        now_seconds: Seconds since the epoch.
        held: Jobs that hold memory.
        quotas: By UID.
        rules: Time constants of the order.
        plan: Of a batch.
        precedence: State that the round before returned.
        later: Jobs that join the queue once others have ended, which are assumed to succeed. One that awaits no job is kept
            back by something unpredictable, such as the limit of its array, and does not join.
        most_without_gpu: Limit on running jobs without a GPU.
    """
    rules = rules or OrderRules()
    today = admit(
        rooms,
        queue,
        now_seconds,
        held=held,
        quotas=quotas,
        rules=rules,
        plan=plan,
        precedence=precedence,
        most_without_gpu=most_without_gpu,
    )
    wanted = {*(wait.job_id for wait in today.waits[:MOST_JOBS]), *(grant.job_id for grant in today.grants)}
    future = _Future(rooms, [candidate for candidate in queue if candidate.job_id in wanted], held, rules, now_seconds)
    future.precedence, future.most_without_gpu = precedence, most_without_gpu
    future.later = [(candidate, set(awaited)) for candidate, awaited in later if awaited][:MOST_JOBS]
    while future.waiting or future.later:
        future.start_what_fits(quotas or {}, plan)
        if not future.ends:
            break
        future.go_on()
    return future.starts


class _Future:
    """The simulated machine."""

    def __init__(
        self,
        rooms: Sequence[GpuRoom],
        waiting: Sequence[Candidate],
        held: Sequence[Held],
        rules: OrderRules,
        now_seconds: float,
    ) -> None:
        self.starts: dict[str, float] = {}
        self.precedence = NO_PRECEDENCE
        self.most_without_gpu = MOST_AT_ONCE
        self.later: list[tuple[Candidate, set[str]]] = []
        self.waiting = [replace(candidate, deadline_seconds=None) for candidate in waiting]
        self.ends = [(expected_end_seconds(each, rules.default_duration_seconds, now_seconds), each) for each in held]
        self._rooms = {room.gpu.uuid: room for room in rooms}
        self._rules = rules
        self._now_seconds = now_seconds

    def start_what_fits(self, quotas: Mapping[int, Quota], plan: BatchPlan) -> None:
        """Simulate one round."""
        admission = admit(
            list(self._rooms.values()),
            self.waiting,
            self._now_seconds,
            held=[held for _, held in self.ends],
            quotas=quotas,
            rules=self._rules,
            plan=plan,
            precedence=self.precedence,
            most_without_gpu=self.most_without_gpu,
        )
        known = {candidate.job_id: candidate for candidate in self.waiting}
        self.precedence = self._precedence_after(admission, known)
        for grant in admission.grants:
            candidate = known.pop(grant.job_id)
            share, lasts_seconds = candidate.compute_share, self._lasts_seconds(candidate)
            started = Held(
                grant.job_id, candidate.owner_uid, grant.slices, self._now_seconds, share, lasts_seconds, grant.mode
            )
            self.starts[grant.job_id] = self._now_seconds
            self.ends.append((self._now_seconds + lasts_seconds, started))
            self._change(started, 1)
        self.waiting = list(known.values())

    def go_on(self) -> None:
        """Jump to the next end, and let the jobs that awaited it join the queue."""
        self.ends.sort(key=lambda end: end[0])
        self._now_seconds = self.ends[0][0]
        while self.ends and self.ends[0][0] <= self._now_seconds:
            ended = self.ends.pop(0)[1]
            self._change(ended, -1)
            for _, awaited in self.later:
                awaited.discard(ended.job_id)
            self.waiting += [
                replace(candidate, eligible_at_seconds=self._now_seconds)
                for candidate, awaited in self.later
                if not awaited
            ]
            self.later = [(candidate, awaited) for candidate, awaited in self.later if awaited]

    def _precedence_after(self, admission: Admission, known: Mapping[str, Candidate]) -> Precedence:
        # The end of a job that went first is predicted, so it is known from its start on.
        served = [each for each in self.precedence.served if each.counts(self._now_seconds)]
        for grant in admission.grants:
            if grant.went_first:
                candidate = known[grant.job_id]
                memory_bytes = sum(part.memory_bytes for part in grant.slices)
                end_seconds = self._now_seconds + self._lasts_seconds(candidate)
                served.append(ServedJob(candidate.owner_uid, memory_bytes, self._now_seconds, end_seconds))
        return Precedence(admission.reservation, tuple(served))

    def _lasts_seconds(self, candidate: Candidate) -> float:
        return candidate.duration_seconds or self._rules.default_duration_seconds

    def _change(self, held: Held, sign: int) -> None:
        for part in held.slices:
            room = self._rooms.get(part.gpu_uuid)
            if room is not None:
                granted_bytes = room.granted_bytes + sign * taken_bytes(room.gpu, part.memory_bytes)
                granted_compute = room.granted_compute + sign * held.compute_share
                tenancy = room.tenancy.joined(held.mode, held.owner_uid) if sign > 0 else room.tenancy.left()
                self._rooms[part.gpu_uuid] = replace(
                    room, granted_bytes=granted_bytes, granted_compute=granted_compute, tenancy=tenancy
                )
