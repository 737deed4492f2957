"""When waiting jobs start: simulated rounds of admission, until no job waits.

What is not known is not guessed: a start that rests on the end of a job of unknown length is marked, and bounded where it can be.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from pgpu.scheduling.admission import admit, machine_of
from pgpu.scheduling.admission_round import (
    NO_PRECEDENCE,
    Candidate,
    Held,
    OrderRules,
    Precedence,
    PredictSlowdowns,
    Quota,
    predict_nothing,
)
from pgpu.scheduling.capacity import GpuRoom, taken_bytes
from pgpu.scheduling.free_capacity import FreeCapacity
from pgpu.scheduling.order import NO_PLAN, BatchPlan
from pgpu.scheduling.quota_usage import MOST_AT_ONCE
from pgpu.scheduling.reservations import NEVER, expected_ends, possible_hosts, reserve
from pgpu.scheduling.start_rule import hold_end_seconds, may_be_held
from pgpu.scheduling.virtual_clocks import advance
from pgpu.structs import Struct, replace


class ExpectedStart(Struct, frozen=True):
    """Predicted grant of a waiting job."""

    at_seconds: float
    """Seconds since the epoch."""

    gpu_uuids: tuple[str, ...]
    assumed: str | None = None
    """Id of the first job that ends before it by an assumption (no earlier run, or past its prediction); None if none does."""

    not_before_seconds: float | None = None
    """Where one does: when there is room for it even if every job of unknown end ended now; None if there is room then."""

    by_seconds: float | None = None
    """Likewise, of the only job that waits: when it starts even if no job of unknown length ever ends; None if it does not.

    Of several it is always None: by a job that ends early another one may start, and take the room that this one would get.
    """


# Only this many jobs of the queue are simulated; for later ones a prediction is not worth the computing time.
MOST_JOBS = 200

# A job that is not in the queue yet, since it waits for jobs or for its begin, and the ids of the jobs that must end before it.
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
    predict: PredictSlowdowns = predict_nothing,
) -> dict[str, ExpectedStart]:
    """Return when waiting jobs are expected to start, and on which GPUs, by job id.

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
        precedence: State that the round before returned, with the clocks as they are now.
        later: Jobs that join the queue at their begin, once others have ended, which are assumed to succeed. One that awaits
            neither is kept back by something unpredictable, such as the limit of its array, and does not join.
        most_without_gpu: Limit on running jobs without a GPU.
        predict: Slowdowns of profiled programs together.
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
        predict=predict,
    )
    wanted = {*(wait.job_id for wait in today.waits[:MOST_JOBS]), *(grant.job_id for grant in today.grants)}
    known = [candidate for candidate in queue if candidate.job_id in wanted]

    def simulate(*, is_patient: bool) -> dict[str, ExpectedStart]:
        future = _Future(rooms, known, held, rules, now_seconds, is_patient=is_patient)
        future.precedence, future.most_without_gpu, future.predict = precedence, most_without_gpu, predict
        future.quotas = quotas or {}
        future.later = [
            (candidate, set(awaited))
            for candidate, awaited in later
            if awaited or candidate.eligible_at_seconds > now_seconds
        ][:MOST_JOBS]
        return future.run(plan)

    starts = simulate(is_patient=False)
    if all(start.assumed is None for start in starts.values()):
        return starts
    sure = simulate(is_patient=True) if len(today.waits) == 1 and not later else {}
    candidates = {candidate.job_id: candidate for candidate in (*known, *(each for each, _ in later))}
    earliest = _EarliestRoom(rooms, held, now_seconds)
    return {
        job_id: start
        if start.assumed is None
        else replace(
            start,
            not_before_seconds=earliest.for_job(candidates[job_id]),
            by_seconds=sure[job_id].at_seconds if job_id in sure else None,
        )
        for job_id, start in starts.items()
    }


class _EarliestRoom:
    """When jobs have room at the earliest: jobs of unknown end are taken to end now, and no other job to be before them."""

    def __init__(self, rooms: Sequence[GpuRoom], held: Sequence[Held], now_seconds: float) -> None:
        self._rooms, self._now_seconds = rooms, now_seconds
        self._space = self._whole = FreeCapacity.of(rooms)
        if any(room.headroom_bytes for room in rooms):
            self._whole = FreeCapacity.of([replace(room, headroom_bytes=0) for room in rooms])
        assumed = _of_unknown_end(held, now_seconds)
        ends = expected_ends(held, 0.0, now_seconds)
        self._ends = [(now_seconds if each.job_id in assumed else end, each) for end, each in ends]
        self._found: dict[object, float | None] = {}

    def for_job(self, candidate: Candidate) -> float | None:
        """Return the time in seconds since the epoch; None for now, or if there is never any."""
        # The jobs of an array differ in nothing that matters here.
        shape = (candidate.request, candidate.owner_uid, candidate.gpu_uuid, candidate.uses_headroom)
        if shape not in self._found:
            gpus = [room.gpu for room in possible_hosts(self._rooms, candidate)]
            space = self._whole if candidate.uses_headroom else self._space
            found = reserve(candidate, gpus, space, self._ends, self._now_seconds)
            is_later = found is not None and found.start_seconds > self._now_seconds
            self._found[shape] = found.start_seconds if found is not None and is_later else None
        begin_seconds = candidate.eligible_at_seconds
        return (
            max(begin_seconds, self._found[shape] or 0.0) if begin_seconds > self._now_seconds else self._found[shape]
        )


def _of_unknown_end(held: Iterable[Held], now_seconds: float) -> set[str]:
    """Return the ids of jobs whose ends are assumed: without history, or past their prediction."""
    return {
        each.job_id
        for each in held
        if each.duration_seconds is None or each.granted_at_seconds + each.duration_seconds <= now_seconds
    }


class _Future:
    """Simulated state: the jobs that wait, the ends of those that run, and what is left of each GPU."""

    def __init__(
        self,
        rooms: Sequence[GpuRoom],
        waiting: Sequence[Candidate],
        held: Sequence[Held],
        rules: OrderRules,
        now_seconds: float,
        *,
        is_patient: bool,
    ) -> None:
        """Begin now; `is_patient` takes jobs of unknown length never to end, instead of to run as long as the rules say."""
        self.starts: dict[str, ExpectedStart] = {}
        self.precedence = NO_PRECEDENCE
        self.most_without_gpu = MOST_AT_ONCE
        self.quotas: Mapping[int, Quota] = {}
        self.predict: PredictSlowdowns = predict_nothing
        self.later: list[tuple[Candidate, set[str]]] = []
        self.renewals: list[float] = []
        """Begins of the next periods of quotas."""

        # No simulated wait expires, but a job whose wait is limited is still never held back.
        self.waiting = [
            replace(candidate, deadline_seconds=None if candidate.deadline_seconds is None else math.inf)
            for candidate in waiting
        ]
        self._assumed = _of_unknown_end(held, now_seconds)
        self._unknown_seconds = NEVER if is_patient else rules.default_duration_seconds
        self.ends = [
            (NEVER if is_patient and each.job_id in self._assumed else end, each)
            for end, each in expected_ends(held, rules.default_duration_seconds, now_seconds)
        ]
        self._rooms = {room.gpu.uuid: room for room in rooms}
        self._rules = rules
        self._now_seconds = now_seconds
        self._holds_back = False
        self._assumption: str | None = None

    def run(self, plan: BatchPlan) -> dict[str, ExpectedStart]:
        """Simulate rounds until no job waits, or nothing comes that would let one start; return the starts."""
        self.renewals = [
            each.gpu_hours.renewed_at_seconds for each in self.quotas.values() if each.gpu_hours is not None
        ]
        while self.waiting or self.later:
            # Each round is the real `admit`; only time is simulated.
            self.start_what_fits(plan)
            if not self.advance():
                break
        return self.starts

    def start_what_fits(self, plan: BatchPlan) -> None:
        """Simulate one round."""
        admission = admit(
            list(self._rooms.values()),
            self.waiting,
            self._now_seconds,
            held=[held for _, held in self.ends],
            quotas=self.quotas,
            rules=self._rules,
            plan=plan,
            precedence=self.precedence,
            most_without_gpu=self.most_without_gpu,
            predict=self.predict,
        )
        self._holds_back = admission.holds_back
        known = {candidate.job_id: candidate for candidate in self.waiting}
        # As between rounds of the engine.
        self.precedence = Precedence(admission.reservation, admission.time)
        for grant in admission.grants:
            candidate = known.pop(grant.job_id)
            share, lasts_seconds = candidate.compute_share, self._lasts_seconds(candidate)
            started = Held(
                grant.job_id,
                candidate.owner_uid,
                grant.slices,
                self._now_seconds,
                share,
                lasts_seconds,
                grant.mode,
                candidate.batch,
                uses_headroom=candidate.uses_headroom,
                usual_demand=candidate.usual_demand,
                profiled=candidate.profiled,
                family=candidate.family,
                grows=candidate.grows,
            )
            gpu_uuids = tuple(part.gpu_uuid for part in grant.slices)
            self.starts[grant.job_id] = ExpectedStart(self._now_seconds, gpu_uuids, self._assumption)
            self.ends.append((self._now_seconds + lasts_seconds, started))
            self._change(started, 1)
            if not candidate.duration_seconds:
                self._assumed.add(grant.job_id)
        self.waiting = list(known.values())

    def advance(self) -> bool:
        """Jump to the next time at which a job may start, and let those join that waited for it; return whether there is one.

        That is the end of a job, the begin of one that waits for no other, the end of the time that one is held back, or a new
        period of a quota.
        """
        self.ends.sort(key=lambda end: end[0])
        held_back = [each for each in self.waiting if self._holds_back and may_be_held(each, self._now_seconds)]
        begins = [candidate.eligible_at_seconds for candidate, awaited in self.later if not awaited]
        renewals = self.renewals if self.waiting else ()
        times = [each for each in (*begins, *map(hold_end_seconds, held_back), *renewals) if each > self._now_seconds]
        times += [end_seconds for end_seconds, _ in self.ends[:1] if end_seconds != NEVER]
        if not times:
            return False
        next_seconds = min(times)
        seconds, held = max(0.0, next_seconds - self._now_seconds), [each for _, each in self.ends]
        time = advance(self.precedence.time, held, machine_of(list(self._rooms.values())), self.quotas, seconds)
        self.precedence = replace(self.precedence, time=time)
        self._now_seconds = next_seconds
        while self.ends and self.ends[0][0] <= self._now_seconds:
            ended = self.ends.pop(0)[1]
            if self._assumption is None and ended.job_id in self._assumed:
                self._assumption = ended.job_id
            self._change(ended, -1)
            for _, awaited in self.later:
                awaited.discard(ended.job_id)

        def joins(candidate: Candidate, awaited: Collection[str]) -> bool:
            return not awaited and candidate.eligible_at_seconds <= self._now_seconds

        self.waiting += [replace(each[0], eligible_at_seconds=self._now_seconds) for each in self.later if joins(*each)]
        self.later = [each for each in self.later if not joins(*each)]
        return True

    def _lasts_seconds(self, candidate: Candidate) -> float:
        return candidate.duration_seconds or self._unknown_seconds

    def _change(self, held: Held, sign: int) -> None:
        for part in held.slices:
            room = self._rooms.get(part.gpu_uuid)
            if room is not None:
                granted_bytes = room.granted_bytes + sign * taken_bytes(room.gpu, part.memory_bytes)
                granted_compute = room.granted_compute + sign * held.compute_share
                tenancy = room.tenancy.with_job(held.mode, held.owner_uid) if sign > 0 else room.tenancy.without_job()
                yielded_bytes = room.yielded_bytes if held.uses_headroom or sign < 0 else 0
                growing_jobs = room.growing_jobs + sign * held.grows
                self._rooms[part.gpu_uuid] = replace(
                    room,
                    granted_bytes=granted_bytes,
                    granted_compute=granted_compute,
                    tenancy=tenancy,
                    yielded_bytes=yielded_bytes,
                    growing_jobs=growing_jobs,
                )
