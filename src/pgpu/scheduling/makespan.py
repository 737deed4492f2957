"""In which order a batch of jobs ends soonest (`--objective makespan`).

No single order wins on every batch, so several are played on the predicted durations, and the best is improved by moving
jobs about and by having some let a longer one start first. Where durations are doubtful, a search finds what suits the futures
it is shown: whatever is to replace *largest memory-time first* must be surely better in others. Jobs slow each other down: it may pay to run fewer at once than
fit, so that is tried, too. It plays the future of what it is told and knows no clock; who calls it plans again when a job
ends early or late, or a new one comes.

Source: P1 (its 25 jobs end in 17.97 s as 12 + 13, in 25.56 s as 20 + 5); list scheduling (Graham, 1969).
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pgpu.errors import PgpuBug
from pgpu.model import SharingMode
from pgpu.scheduling.admission_round import Candidate, Held
from pgpu.scheduling.batch_simulation import NO_HOLDS, Batch, BatchJob, RunningBatchJob, SimulatedRun, simulate
from pgpu.scheduling.capacity import GpuRoom
from pgpu.scheduling.durations import Slowdown, SlowdownCurve, is_surely_less, mean_slowdown
from pgpu.scheduling.order import NO_PLAN, BatchPlan, OrderRules

STEPS_PER_SECOND = 60_000
"""Jobs that are played in a second of an ordinary core, roughly: what `plan_batch` counts its effort in."""

MOST_PLANNED = 200
"""Jobs that are played; what is behind so many has time to be planned later."""

_SEED = 1
"""The same batch always gets the same plan."""

_MOST_HOLDS_AT_A_TIME = 3

_EVERY_NUMBER_TO = 16
"""As limits to how many share a GPU; from there on in steps."""

_MOST_LIMITS = 3
"""So many of them, the best for durations as predicted, are played on all that may be."""

NOTHING_KNOWN: Mapping[str, SlowdownCurve] = {}

_WORLDS = 16
"""So many ways in which durations may turn out are played where they are doubtful."""

_MOST_CHECKS = 64
"""So many others, at most, on which an order must prove to be better than the usual one."""


def plan_waiting(
    rooms: Sequence[GpuRoom],
    queue: Sequence[Candidate],
    now_seconds: float,
    *,
    held: Sequence[Held] = (),
    rules: OrderRules | None = None,
    slowdown: Slowdown | None = None,
    stretches: Mapping[str, SlowdownCurve] = NOTHING_KNOWN,
    doubt: float = 0.0,
    last: BatchPlan = NO_PLAN,
    effort: int = STEPS_PER_SECOND,
) -> BatchPlan:
    """Plan what waits, for `admit`: long before it or in between, since a plan still holds when jobs ended meanwhile.

    Jobs on several GPUs, those that do not share GPUs in time slices, and what no GPU can hold now, are left to the usual
    order, after those of their priority. Of a long queue the jobs with the largest memory-time are planned, and the others
    go after them in that order. A MIG instance is taken for a GPU that several jobs may share; admission knows better.

    Args:
        rooms: Every GPU and MIG instance, in NVML index order.
        queue: Waiting requests, oldest first.
        now_seconds: Seconds since the epoch.
        held: Every job whose slices are part of what the rooms have granted.
        rules: How long jobs without history are taken to run.
        slowdown: By how much each of so many jobs on one GPU is slowed down; None for what the stretches say.
        stretches: By job id: how long those jobs run whose programs are known, and what companions cost them.
        doubt: As of `plan_batch`.
        last: As of `plan_batch`.
        effort: As of `plan_batch`.
    """
    rules = rules or OrderRules()
    told = _Told(rules, stretches, slowdown or _slowdown((*queue, *held), stretches, rules))
    busy = list(told.busy({room.gpu.uuid: place for place, room in enumerate(rooms)}, held, now_seconds))
    capacity_bytes = [room.free_bytes for room in rooms]
    for each in busy:
        capacity_bytes[each.gpu] += each.memory_bytes
    jobs = [told.job(candidate) for candidate in queue if _is_planned(candidate)]
    jobs = [job for job in jobs if job.memory_bytes <= max(capacity_bytes, default=0)]
    jobs.sort(key=lambda job: -job.memory_bytes * job.duration_seconds)
    near, far = jobs[:MOST_PLANNED], jobs[MOST_PLANNED:]
    plan = plan_batch(near, capacity_bytes, busy=busy, slowdown=told.slowdown, doubt=doubt, last=last, effort=effort)
    return replace(plan, order=(*plan.order, *(job.job_id for job in far)))


def _is_planned(candidate: Candidate) -> bool:
    return candidate.request.gpu_count == 1 and candidate.mode is SharingMode.TIME_SLICE


def _slowdown(
    jobs: Sequence[Candidate | Held], stretches: Mapping[str, SlowdownCurve], rules: OrderRules
) -> Slowdown | None:
    lasting = (each.duration_seconds or rules.default_duration_seconds for each in jobs)
    return mean_slowdown(zip((stretches.get(each.job_id) for each in jobs), lasting, strict=True))


@dataclass(frozen=True, slots=True)
class _Told:
    """What the planner is told of durations, in the words of a batch."""

    rules: OrderRules
    stretches: Mapping[str, SlowdownCurve]
    slowdown: Slowdown | None

    def job(self, candidate: Candidate) -> BatchJob:
        request = candidate.request
        alone_seconds, doubt = self._alone(candidate)
        share = request.compute_share or 0.0
        return BatchJob(candidate.job_id, request.memory_bytes, alone_seconds, share, doubt=doubt)

    def busy(self, gpus: Mapping[str, int], held: Sequence[Held], now_seconds: float) -> Iterator[RunningBatchJob]:
        """Those that run have run as slowly until now as they do beside those who are there now: a guess."""
        counts = Counter(part.gpu_uuid for each in held for part in each.slices)
        for each in held:
            alone_seconds, doubt = self._alone(each)
            for part in each.slices:
                if part.gpu_uuid in gpus:
                    pace = self.slowdown(counts[part.gpu_uuid]) if self.slowdown else 1.0
                    elapsed_seconds = max(0.0, now_seconds - each.granted_at_seconds) / pace
                    gpu, share = gpus[part.gpu_uuid], each.compute_share
                    yield RunningBatchJob(gpu, part.memory_bytes, alone_seconds, elapsed_seconds, share, doubt)

    def _alone(self, job: Candidate | Held) -> tuple[float, float | None]:
        """Return seconds, and how doubtful they are."""
        stretch = self.stretches.get(job.job_id)
        if stretch is not None:
            return stretch.alone_seconds, stretch.doubt
        return job.duration_seconds or self.rules.default_duration_seconds, None


def plan_batch(
    jobs: Sequence[BatchJob],
    capacity_bytes: Sequence[int],
    *,
    busy: Sequence[RunningBatchJob] = (),
    slowdown: Slowdown | None = None,
    doubt: float = 0.0,
    last: BatchPlan = NO_PLAN,
    effort: int = STEPS_PER_SECOND,
) -> BatchPlan:
    """Find an order that ends a batch early.

    Pure: the same arguments always give the same plan. It stops where nothing can end sooner.

    Args:
        jobs: What waits, each on one GPU.
        capacity_bytes: What slices may sum to, by GPU.
        busy: What runs already; it fits.
        slowdown: By how much each of so many jobs on one GPU is slowed down, at least 1; None if they are not.
        doubt: Standard deviation of the logarithm of true over predicted durations, of those jobs that have none of their
            own: 0 if they are known, 0.7 if they are often off by a factor of two. The plan is then *largest memory-time
            first*, or one whose end is surely sooner on average.
        last: The plan until now: where the search begins if it is still good.
        effort: So many jobs are played at most, those of the first orders not counted. Default: about a second. Where
            durations are doubtful, as many again on what the first orders are compared on.

    Returns:
        The best plan found; with known durations never worse than the best of the orders that are tried first.

    Raises:
        ValueError: A job fits on none of the GPUs.
    """
    batch = Batch.of(jobs, capacity_bytes, busy, slowdown)
    ids = [job.job_id for job in jobs]
    guesses = [*_still_good(last, ids), *_first_guesses(batch)]
    best = _Search(batch, doubt, guesses, effort // max(1, len(jobs))).best()
    return BatchPlan(
        tuple(ids[place] for place in best.order),
        best.most_at_once,
        {ids[job]: ids[first] for job, first in best.holds.items()},
        simulate(batch, best.order, best.holds, best.most_at_once).end_seconds,
        batch.least_seconds(),
    )


_Guess = tuple[Sequence[int], Mapping[int, int], int]
"""Order, holds and how many at once."""


def _first_guesses(batch: Batch) -> Iterator[_Guess]:
    places = range(len(batch.memory_bytes))
    yield list(places), NO_HOLDS, 0
    for key in _keys(batch):
        yield sorted(places, key=key, reverse=True), NO_HOLDS, 0


def _usual(batch: Batch) -> _Guess:
    """Largest memory-time first: of the plain orders the one that errs least where durations are doubtful."""
    return sorted(range(len(batch.work)), key=lambda job: -batch.work[job]), NO_HOLDS, 0


def _fewer_at_once(batch: Batch, order: Sequence[int]) -> Iterator[_Guess]:
    """Yield the same order with fewer jobs on a GPU than fit, where companions cost time: every small number, then fewer."""
    if not batch.is_slowed:
        return
    fitting = max(batch.capacity_bytes, default=0) // max(1, min(batch.memory_bytes, default=1))
    most_at_once = 1
    while most_at_once < min(len(batch.pace), fitting + 1):
        yield order, NO_HOLDS, most_at_once
        most_at_once += 1 + most_at_once // _EVERY_NUMBER_TO


def _still_good(last: BatchPlan, ids: Sequence[str]) -> Iterator[_Guess]:
    """Yield what is left of a plan, if anything; jobs that it does not know go last."""
    places = {job_id: place for place, job_id in enumerate(ids)}
    order = [places[job_id] for job_id in last.order if job_id in places]
    if order:
        holds = {
            places[job_id]: places[first]
            for job_id, first in last.holds.items()
            if job_id in places and first in places
        }
        known = set(order)
        yield [*order, *(place for place in places.values() if place not in known)], holds, last.most_at_once


def _keys(batch: Batch) -> tuple[Callable[[int], float], ...]:
    """Longest first, largest first, largest memory-time, largest share-time, those that share with nobody first."""
    most_bytes = max(batch.capacity_bytes, default=1)
    share = [memory_bytes / most_bytes for memory_bytes in batch.memory_bytes]
    lasts = batch.duration_seconds
    return (
        lambda job: lasts[job],
        lambda job: share[job],
        lambda job: share[job] * lasts[job],
        lambda job: max(share[job], batch.compute_share[job]) * lasts[job],
        lambda job: (2 * share[job] > 1) * lasts[job] + 1e-3 * share[job] * lasts[job],
    )


@dataclass(frozen=True, slots=True)
class _Trial:
    """An order, played on everything that may be."""

    played: SimulatedRun
    """On the first of it."""

    value: tuple[float, float]
    """The smaller, the better: the sums of the ends, and of how late work starts."""

    @property
    def order(self) -> tuple[int, ...]:
        return self.played.order

    @property
    def holds(self) -> Mapping[int, int]:
        return self.played.holds

    @property
    def most_at_once(self) -> int:
        return self.played.most_at_once


class _Search:
    """Local search from the best of the first guesses: a change is kept if the batch ends no later.

    With so many plays at most. Sixteen futures are soon learnt by heart, so what they lead to is checked on others.
    """

    def __init__(self, batch: Batch, doubt: float, guesses: Sequence[_Guess], plays: int) -> None:
        self._dice = random.Random(_SEED)  # noqa: S311 - spreads the search, guards nothing
        self._batch = batch
        self._worlds = batch.as_it_may_be(doubt, _WORLDS, self._dice)
        self._least_seconds = [world.least_seconds() for world in self._worlds]
        self._plays = plays
        checks = max(_WORLDS, min(_MOST_CHECKS, plays // max(1, len(guesses))))
        self._checks = batch.as_it_may_be(doubt, checks, self._dice)
        self._hold_odds = 0.3 if any(batch.release_seconds) else 0.15
        best = self._start = self._best_of([self._trusted(guesses)] if self._is_doubtful else guesses)
        fewer = sorted(_fewer_at_once(batch, best.order), key=lambda guess: simulate(batch, *guess).value)
        self._keep(self._best_of(fewer[:_MOST_LIMITS], best))

    @property
    def _is_doubtful(self) -> bool:
        return len(self._worlds) > 1

    def best(self) -> _Trial:
        """Return the best plan that changes lead to; where durations are doubtful, only if it is surely better."""
        self._improve()
        if not self._is_doubtful or self._best is self._start:
            return self._best
        found, start = (self._ends((each.order, each.holds, each.most_at_once)) for each in (self._best, self._start))
        return self._best if is_surely_less(found, start) else self._start

    def _trusted(self, guesses: Sequence[_Guess]) -> _Guess:
        """Choose the usual order, unless another one ends surely sooner on average."""
        usual = _usual(self._batch)
        ends = [self._ends(guess) for guess in guesses]
        soonest = min(range(len(guesses)), key=lambda place: sum(ends[place]))
        return guesses[soonest] if is_surely_less(ends[soonest], self._ends(usual)) else usual

    def _ends(self, guess: _Guess) -> list[float]:
        return [simulate(world, *guess).end_seconds for world in self._checks]

    def _improve(self) -> None:
        for _ in range(self._plays // len(self._worlds)):
            if self._best.value[0] <= sum(self._least_seconds) * (1 + 1e-9) or len(self._best.order) <= 1:
                break
            order, holds = self._changed()
            trial = self._tried(order, holds, self._best.most_at_once, self._best.value[0])
            if trial is not None and trial.value <= self._best.value:
                self._keep(trial)

    def _best_of(self, guesses: Iterable[_Guess], best: _Trial | None = None) -> _Trial:
        for order, holds, most_at_once in guesses:
            trial = self._tried(order, holds, most_at_once, math.inf if best is None else best.value[0])
            if trial is not None and (best is None or trial.value < best.value):
                best = trial
        if best is None:
            raise PgpuBug("no first guess at a plan")
        return best

    def _tried(self, order: Sequence[int], holds: Mapping[int, int], most: int, enough_seconds: float) -> _Trial | None:
        """Play an order everywhere; None as soon as it can no longer be as good as that."""
        first: SimulatedRun | None = None
        ends, lateness, to_come = 0.0, 0.0, sum(self._least_seconds)
        for world, least_seconds in zip(self._worlds, self._least_seconds, strict=True):
            played = simulate(world, order, holds, most)
            first = first or played
            ends += played.value[0]
            lateness += played.value[1]
            to_come -= least_seconds
            if ends + to_come > enough_seconds * (1 + 1e-9):
                return None
        return None if first is None else _Trial(first, (ends, lateness))

    def _keep(self, trial: _Trial) -> None:
        self._best = trial
        ends_seconds = trial.played.ends_seconds
        self._latest = sorted(trial.order, key=lambda job: -ends_seconds[job])

    def _changed(self) -> tuple[list[int], Mapping[int, int]]:
        order, holds = list(self._best.order), self._best.holds
        kind = self._dice.random()
        if kind < self._hold_odds:
            return self._hold_back(order, dict(holds))
        if kind < (1 + self._hold_odds) / 2:
            _move(order, self._one_of_the_latest(6), self._dice)
        else:
            self._swap_or_shift(order)
        return order, holds

    def _hold_back(self, order: list[int], holds: dict[int, int]) -> tuple[list[int], Mapping[int, int]]:
        """Have some jobs that stand in the way of a late one let it start first, or no longer let it."""
        if holds and self._dice.random() < self._hold_odds:
            del holds[self._dice.choice(list(holds))]
            return order, holds
        late = self._one_of_the_latest(4)
        starts, ends = self._best.played.starts_seconds, self._best.played.ends_seconds
        release_seconds = self._batch.release_seconds[late]
        in_the_way = [job for job in order if starts[job] < starts[late] and ends[job] > release_seconds]
        if in_the_way:
            most = min(_MOST_HOLDS_AT_A_TIME, len(in_the_way))
            held = self._dice.sample(in_the_way, self._dice.randint(1, most))
            holds.update(dict.fromkeys(held, late))
            _put_before(order, late, min(order.index(job) for job in held))
        return order, holds

    def _swap_or_shift(self, order: list[int]) -> None:
        first, second = self._dice.randrange(len(order)), self._dice.randrange(len(order))
        if self._dice.random() < 1 / 2:
            order[first], order[second] = order[second], order[first]
        else:
            order.insert(second, order.pop(first))

    def _one_of_the_latest(self, count: int) -> int:
        return self._latest[self._dice.randrange(min(count, len(self._latest)))]


def _move(order: list[int], job: int, dice: random.Random) -> None:
    """Pull a job forward."""
    place = order.index(job)
    if place:
        order.insert(dice.randrange(place), order.pop(place))


def _put_before(order: list[int], job: int, place: int) -> None:
    now = order.index(job)
    if now > place:
        order.insert(place, order.pop(now))
