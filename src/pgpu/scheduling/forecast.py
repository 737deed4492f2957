"""How long jobs run and when they start: doubt about durations, slowdown by other jobs, and simulated rounds of admission.

A predicted duration is taken as the median of a log-normal distribution: it is off by a factor, too long as likely as too
short. For a running job the distribution is conditioned on the time it has run so far.

The slowdown of a program is learnt from its runs beside different numbers of jobs. Other jobs never make it faster here,
whatever chance shows. Between two numbers seen, a GPU has room up to a point and is shared in proportion beyond it. Above the
largest number seen nothing is assumed, so larger numbers are tried. Which programs run beside it makes no difference.

Source: pool adjacent violators (Ayer et al., 1955).
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    import random

# Up to this doubt a duration counts as known: 20 % more or less costs a plan less than hedging against it.
KNOWN = 0.2

# With fewer runs, a difference between two numbers of jobs may be chance.
LEAST_RUNS = 5

# For each number of jobs on the GPU, only this many of the newest runs are used.
RUNS_OF_A_NUMBER = 15

# Standard errors: a one-sided error probability of about 2.5 %.
_SURE = 2.0

# No draw lies beyond this quantile.
_LONGEST = 1 - 1e-9

# Weight of the prior doubt, in runs: after three runs of equal length the next one is expected to be equal, too.
_PRIOR_RUNS = 0.25

# Maps the number of jobs on one GPU to the slowdown of each, at least 1.
Slowdown = Callable[[int], float]


def expected_left_seconds(duration_seconds: float, elapsed_seconds: float) -> float:
    """Return the expected remaining run time; a job past its predicted duration is expected to run as long again."""
    return duration_seconds - elapsed_seconds if duration_seconds > elapsed_seconds else elapsed_seconds


def median(values: Iterable[float]) -> float:
    """Return the median of at least one value; `statistics`, which has one, takes longer to import than a round of admission."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def sample_left_seconds(
    duration_seconds: float, elapsed_seconds: float, doubt: float, count: int, generator: "random.Random"
) -> list[float]:
    """Draw remaining run times of a job at evenly spaced quantiles of its distribution, in random order.

    Args:
        duration_seconds: Predicted, of the whole run; above 0.
        elapsed_seconds: Run so far.
        doubt: Standard deviation of the logarithm of true over predicted duration; 0 if it is known.
        count: Number of draws.
        generator: Shuffles them.
    """
    if doubt <= 0:
        return [expected_left_seconds(duration_seconds, elapsed_seconds)] * count
    if duration_seconds <= 0:
        return [elapsed_seconds] * count
    from statistics import NormalDist  # noqa: PLC0415 - only plans of batches sample

    error = NormalDist(math.log(duration_seconds), doubt)
    passed = error.cdf(math.log(elapsed_seconds)) if elapsed_seconds > 0 else 0.0
    if passed >= _LONGEST:
        return [elapsed_seconds] * count
    # Stratified: one draw in the middle of each of `count` equal parts of the probability that is left.
    quantiles = (passed + (1 - passed) * (draw + 0.5) / count for draw in range(count))
    left = [math.exp(error.inv_cdf(min(quantile, _LONGEST))) - elapsed_seconds for quantile in quantiles]
    generator.shuffle(left)
    return [max(0.0, seconds) for seconds in left]


def is_significantly_less(these: Sequence[float], those: Sequence[float]) -> bool:
    """Whether one quantity is smaller than another on average, by more than chance explains (paired samples).

    Args:
        these: Its value in several sampled worlds; at least one.
        those: The value of the other in the same worlds.
    """
    from statistics import fmean, pstdev  # noqa: PLC0415 - likewise

    less = [other - one for one, other in zip(these, those, strict=True)]
    mean = fmean(less)
    return mean > 0 and mean >= _SURE * pstdev(less) / math.sqrt(len(less))


class SlowdownCurve(Struct, frozen=True):
    """Run time of one program by the number of jobs on its GPU."""

    alone_seconds: float
    levels: tuple[tuple[int, float], ...]
    """(Jobs on its GPU, slowdown), ascending in both; at least one."""

    doubt: float
    """Standard deviation of the logarithm of its durations around the curve."""

    def slowdown(self, count: int) -> float:
        """Return its slowdown, 1 or more, with `count` jobs on its GPU, itself included."""
        place = bisect_right(self.levels, (count, math.inf))
        if not place:
            return 1.0
        seen_count, before = self.levels[place - 1]
        if seen_count == count or place == len(self.levels):
            return before
        next_count, next_slowdown = self.levels[place]
        return max(before, next_slowdown * count / next_count)


def fit_slowdown_curve(runs: Iterable[tuple[float, float]], prior_doubt: float) -> SlowdownCurve | None:
    """Fit a curve to runs of one program.

    Args:
        runs: Duration in seconds, and the mean number of jobs on the GPU, itself included; newest first.
        prior_doubt: Doubt assumed for a program without history.

    Returns:
        None without runs.
    """
    # The limit is per number, so a number that was slow is not forgotten after it has been avoided for some time.
    logs_by_count: dict[int, list[float]] = {}
    for seconds, together in runs:
        logs = logs_by_count.setdefault(max(1, round(together)), [])
        if seconds > 0 and len(logs) < RUNS_OF_A_NUMBER:
            logs.append(math.log(seconds))
    seen = [(log, count) for count, logs in logs_by_count.items() for log in logs]
    if not seen:
        return None
    levels = _fit_ascending_levels(seen) if len(seen) >= LEAST_RUNS else [(1, median(log for log, _ in seen))]
    base = levels[0][1]
    curve = SlowdownCurve(math.exp(base), tuple((count, math.exp(level - base)) for count, level in levels), 0.0)
    off = sum((log - base - math.log(curve.slowdown(count))) ** 2 for log, count in seen)
    compared = len(seen) - 1  # a single run has no spread
    doubt = math.sqrt((off + _PRIOR_RUNS * prior_doubt**2) / (compared + _PRIOR_RUNS))
    return SlowdownCurve(curve.alone_seconds, curve.levels, doubt)


def mean_slowdown(jobs: Iterable[tuple[SlowdownCurve | None, float]]) -> Slowdown | None:
    """Return the mean slowdown of jobs.

    Args:
        jobs: For each its curve, None if unknown, and its duration in seconds, which is its weight.

    Returns:
        None if no job is known to be slowed down.
    """
    weighed = list(jobs)
    known = [(curve, weight) for curve, weight in weighed if curve is not None and len(curve.levels) > 1]
    total = sum(weight for _, weight in weighed)
    if not known or total <= 0:
        return None
    return lambda count: 1.0 + sum(weight * (curve.slowdown(count) - 1.0) for curve, weight in known) / total


def _fit_ascending_levels(seen: Sequence[tuple[float, int]]) -> list[tuple[int, float]]:
    # Pool adjacent violators: medians of each number, pooled with their neighbours until none falls.
    by_count: dict[int, list[float]] = {}
    for log, count in seen:
        by_count.setdefault(count, []).append(log)
    pools: list[tuple[list[int], float, int]] = []
    for count, logs in sorted(by_count.items()):
        pools.append(([count], median(logs), len(logs)))
        while len(pools) > 1 and pools[-2][1] >= pools[-1][1]:
            (counts, level, weight), (more, next_level, next_weight) = pools[-2:]
            pooled = (level * weight + next_level * next_weight) / (weight + next_weight)
            pools[-2:] = [([*counts, *more], pooled, weight + next_weight)]
    return [(count, level) for counts, level, _ in pools for count in sorted({counts[0], counts[-1]})]


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
