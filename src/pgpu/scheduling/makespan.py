"""Order in which a batch of jobs ends soonest (`--objective makespan`).

No single list order is best for every batch, so several are simulated with the predicted durations, and the best one is improved
by local search: jobs move, swap, or are held until a longer one has started. Where durations are uncertain, the search runs on
sampled worlds and would fit to them, so its result replaces *largest memory-time first* only if it is significantly better in
other samples. Jobs slow each other down, so limits below what fits on a GPU are tried as well. The caller plans again when a job
ends early or late, or a new one arrives.

Source: P1 (its 25 jobs end in 17.97 s as 12 + 13, in 25.56 s as 20 + 5); list scheduling (Graham, 1969).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pgpu.errors import PgpuBug
from pgpu.model import SharingMode
from pgpu.scheduling.admission_round import Candidate, Held, OrderRules
from pgpu.scheduling.batch_simulation import NO_HOLDS, BatchJob, RunningBatchJob, SimulatedBatch, SimulatedRun, simulate
from pgpu.scheduling.capacity import GpuRoom
from pgpu.scheduling.order import NO_PLAN, BatchPlan
from pgpu.scheduling.run_times import Slowdown, SlowdownCurve, is_significantly_less, mean_slowdown
from pgpu.structs import Struct, replace

# Jobs simulated in a second of an ordinary core, roughly: the unit of the effort of `plan_batch`.
STEPS_PER_SECOND = 60_000

# Jobs that are simulated; jobs behind them can be planned later.
MOST_PLANNED = 200

# Fixed, so that the same batch always gets the same plan.
_SEED = 1

_MOST_HOLDS_AT_A_TIME = 3

# Limits on jobs per GPU: every number up to here, then in growing steps.
_EVERY_NUMBER_TO = 16

# Only the best limits by predicted durations are simulated in all sampled worlds.
_MOST_LIMITS = 3

NOTHING_KNOWN: Mapping[str, SlowdownCurve] = {}

# Sampled worlds in which the search compares plans if durations are uncertain.
_WORLDS = 16

# Most further worlds in which a plan must be significantly better than the default order.
_MOST_CHECKS = 64


def plan_waiting(
    rooms: Sequence[GpuRoom],
    queue: Sequence[Candidate],
    now_seconds: float,
    *,
    held: Sequence[Held] = (),
    rules: OrderRules | None = None,
    slowdown: Slowdown | None = None,
    curves: Mapping[str, SlowdownCurve] = NOTHING_KNOWN,
    doubt: float = 0.0,
    last: BatchPlan = NO_PLAN,
    effort: int = STEPS_PER_SECOND,
) -> BatchPlan:
    """Plan the waiting jobs for `admit`. It need not run in every round: a plan stays valid when jobs end meanwhile.

    Jobs on several GPUs, jobs in other modes than time slices, and jobs that no GPU can hold now keep the usual order, after the
    planned jobs of their priority. Of a long queue the jobs with the largest memory-time are planned, and the others follow in
    that order. A MIG instance is treated as a GPU that several jobs may share; admission still enforces that it is not.

    Args:
        rooms: Every GPU and MIG instance, in NVML index order.
        queue: Waiting requests, oldest first.
        now_seconds: Seconds since the epoch.
        held: Every job with slices in the granted amounts of the rooms.
        rules: Give the duration of jobs without history.
        slowdown: Slowdown of each job by number of jobs on its GPU; None for the mean of `curves`.
        curves: By job id: run times and slowdowns of jobs of known programs.
        doubt: As for `plan_batch`.
        last: As for `plan_batch`.
        effort: As for `plan_batch`.
    """
    rules = rules or OrderRules()
    if slowdown is None:
        jobs_now: tuple[Candidate | Held, ...] = (*queue, *held)
        lasting = (each.duration_seconds or rules.default_duration_seconds for each in jobs_now)
        slowdown = mean_slowdown(zip((curves.get(each.job_id) for each in jobs_now), lasting, strict=True))
    known = _Durations(rules, curves, slowdown)
    busy = list(known.running_jobs({room.gpu.uuid: place for place, room in enumerate(rooms)}, held, now_seconds))
    capacity_bytes = [room.free_bytes for room in rooms]
    for each in busy:
        capacity_bytes[each.gpu] += each.memory_bytes
    jobs = [
        known.waiting_job(candidate)
        for candidate in queue
        if candidate.request.gpu_count == 1
        and not candidate.request.gpu_models
        and candidate.mode is SharingMode.TIME_SLICE
    ]
    jobs = [job for job in jobs if job.memory_bytes <= max(capacity_bytes, default=0)]
    jobs.sort(key=lambda job: -job.memory_bytes * job.duration_seconds)
    near, far = jobs[:MOST_PLANNED], jobs[MOST_PLANNED:]
    plan = plan_batch(near, capacity_bytes, busy=busy, slowdown=slowdown, doubt=doubt, last=last, effort=effort)
    return replace(plan, order=(*plan.order, *(job.job_id for job in far)))


class _Durations(Struct, frozen=True):
    """Predicted durations, and jobs of the queue as jobs of a batch."""

    rules: OrderRules
    curves: Mapping[str, SlowdownCurve]
    slowdown: Slowdown | None

    def waiting_job(self, candidate: Candidate) -> BatchJob:
        request = candidate.request
        alone_seconds, doubt = self._alone(candidate)
        share = request.compute_share or 0.0
        return BatchJob(candidate.job_id, request.memory_bytes, alone_seconds, share, doubt=doubt)

    def running_jobs(
        self, gpus: Mapping[str, int], held: Sequence[Held], now_seconds: float
    ) -> Iterator[RunningBatchJob]:
        # Assumption: until now each ran as slowly as it does beside the jobs that are there now.
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
        curve = self.curves.get(job.job_id)
        if curve is not None:
            return curve.alone_seconds, curve.doubt
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

    Pure: the same arguments always give the same plan. The search stops at the lower bound.

    Args:
        jobs: Waiting jobs, each on one GPU.
        capacity_bytes: What slices may sum to, by GPU.
        busy: Running jobs, which fit.
        slowdown: Slowdown of each job by number of jobs on its GPU, at least 1; None for no slowdown.
        doubt: Standard deviation of the logarithm of true over predicted durations, for jobs without one of their own: 0 if
            they are known, 0.7 if they are often off by a factor of two. With doubt, the plan is *largest memory-time first*,
            or a plan with a significantly earlier end on average.
        last: The plan so far: where the search begins if it is still good.
        effort: Most jobs that are simulated, those of the first orders not counted. Default: about a second. With doubt, as
            many again for the worlds in which the first orders are compared.

    Returns:
        The best plan found; with known durations never worse than the best of the orders that are tried first.

    Raises:
        ValueError: A job fits on none of the GPUs.
    """
    batch = SimulatedBatch.of(jobs, capacity_bytes, busy, slowdown)
    ids = [job.job_id for job in jobs]
    guesses = [*_rest_of_plan(last, ids), *_first_guesses(batch)]
    best = _Search(batch, doubt, guesses, effort // max(1, len(jobs))).best().run
    return BatchPlan(
        tuple(ids[place] for place in best.order),
        best.most_at_once,
        {ids[job]: ids[first] for job, first in best.holds.items()},
        simulate(batch, best.order, best.holds, best.most_at_once).end_seconds,
        batch.least_seconds(),
    )


# Order, holds, and most jobs at once.
_Guess = tuple[Sequence[int], Mapping[int, int], int]


def _first_guesses(batch: SimulatedBatch) -> Iterator[_Guess]:
    """Yield the order of arrival, then by decreasing duration, size, memory-time, share-time, and jobs that share with none."""
    places = range(len(batch.memory_bytes))
    most_bytes = max((1, *batch.capacity_bytes))  # outsiders may hold all of every GPU
    share = [memory_bytes / most_bytes for memory_bytes in batch.memory_bytes]
    lasts = batch.duration_seconds
    keys: tuple[Callable[[int], float], ...] = (
        lambda job: lasts[job],
        lambda job: share[job],
        lambda job: share[job] * lasts[job],
        lambda job: max(share[job], batch.compute_share[job]) * lasts[job],
        lambda job: (2 * share[job] > 1) * lasts[job] + 1e-3 * share[job] * lasts[job],
    )
    yield list(places), NO_HOLDS, 0
    for key in keys:
        yield sorted(places, key=key, reverse=True), NO_HOLDS, 0


def _fewer_at_once(batch: SimulatedBatch, order: Sequence[int]) -> Iterator[_Guess]:
    # Limits below what fits on a GPU; only if jobs slow each other down.
    if max(batch.pace) <= 1:
        return
    fitting = max(batch.capacity_bytes, default=0) // max(1, min(batch.memory_bytes, default=1))
    most_at_once = 1
    while most_at_once < min(len(batch.pace), fitting + 1):
        yield order, NO_HOLDS, most_at_once
        most_at_once += 1 + most_at_once // _EVERY_NUMBER_TO


def _rest_of_plan(last: BatchPlan, ids: Sequence[str]) -> Iterator[_Guess]:
    # Jobs that the last plan does not contain go last.
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


class _Trial(Struct, frozen=True):
    run: SimulatedRun
    """In the first world."""

    value: tuple[float, float]
    """Smaller is better: the sums over all worlds of the ends, and of how late work starts."""

    @property
    def guess(self) -> _Guess:
        return self.run.order, self.run.holds, self.run.most_at_once


class _Search:
    """Local search from the best of the first guesses: a change is kept if the batch ends no later.

    Limited to so many simulations (`_simulations`). Sixteen worlds are quickly overfitted, so the result is checked in others.
    """

    def __init__(self, batch: SimulatedBatch, doubt: float, guesses: Sequence[_Guess], simulations: int) -> None:
        import random  # noqa: PLC0415 - only plans of batches search

        self._generator = random.Random(_SEED)  # noqa: S311 - spreads the search, guards nothing
        self._batch = batch
        self._worlds = batch.sample_worlds(doubt, _WORLDS, self._generator)
        self._least_seconds = [world.least_seconds() for world in self._worlds]
        self._simulations = simulations
        checks = max(_WORLDS, min(_MOST_CHECKS, simulations // max(1, len(guesses))))
        self._checks = batch.sample_worlds(doubt, checks, self._generator)
        self._hold_odds = 0.3 if any(batch.release_seconds) else 0.15
        self._is_doubtful = len(self._worlds) > 1
        best = self._start = self._best_of([self._choose_start(guesses)] if self._is_doubtful else guesses)
        fewer = sorted(_fewer_at_once(batch, best.run.order), key=lambda guess: simulate(batch, *guess).value)
        self._keep(self._best_of(fewer[:_MOST_LIMITS], best))

    def best(self) -> _Trial:
        """Return the best plan found by local changes; with uncertain durations only if it is significantly better."""
        for _ in range(self._simulations // len(self._worlds)):
            if self._best.value[0] <= sum(self._least_seconds) * (1 + 1e-9) or len(self._best.run.order) <= 1:
                break
            order, holds = self._change()
            trial = self._try(order, holds, self._best.run.most_at_once, self._best.value[0])
            if trial is not None and trial.value <= self._best.value:
                self._keep(trial)
        if not self._is_doubtful or self._best is self._start:
            return self._best
        found, start = self._ends(self._best.guess), self._ends(self._start.guess)
        return self._best if is_significantly_less(found, start) else self._start

    def _choose_start(self, guesses: Sequence[_Guess]) -> _Guess:
        """Return the default order, unless another one ends significantly earlier on average."""
        # Largest memory-time first: of the plain orders the one that suffers least from wrong durations.
        work = self._batch.work
        usual: _Guess = sorted(range(len(work)), key=lambda job: -work[job]), NO_HOLDS, 0
        ends = [self._ends(guess) for guess in guesses]
        soonest = min(range(len(guesses)), key=lambda place: sum(ends[place]))
        return guesses[soonest] if is_significantly_less(ends[soonest], self._ends(usual)) else usual

    def _ends(self, guess: _Guess) -> list[float]:
        return [simulate(world, *guess).end_seconds for world in self._checks]

    def _best_of(self, guesses: Iterable[_Guess], best: _Trial | None = None) -> _Trial:
        for order, holds, most_at_once in guesses:
            trial = self._try(order, holds, most_at_once, math.inf if best is None else best.value[0])
            if trial is not None and (best is None or trial.value < best.value):
                best = trial
        if best is None:
            raise PgpuBug("no first guess at a plan")
        return best

    def _try(self, order: Sequence[int], holds: Mapping[int, int], most: int, enough_seconds: float) -> _Trial | None:
        """Simulate an order in all worlds; None as soon as the lower bounds of the rest show that it is worse."""
        first: SimulatedRun | None = None
        ends, lateness, to_come = 0.0, 0.0, sum(self._least_seconds)
        for world, least_seconds in zip(self._worlds, self._least_seconds, strict=True):
            run = simulate(world, order, holds, most)
            first = first or run
            ends += run.value[0]
            lateness += run.value[1]
            to_come -= least_seconds
            if ends + to_come > enough_seconds * (1 + 1e-9):
                return None
        return None if first is None else _Trial(first, (ends, lateness))

    def _keep(self, trial: _Trial) -> None:
        self._best = trial
        ends_seconds = trial.run.ends_seconds
        self._latest = sorted(trial.run.order, key=lambda job: -ends_seconds[job])

    def _change(self) -> tuple[list[int], Mapping[int, int]]:
        """Return a random neighbour of the best plan: other holds, a late job moved forward, or two jobs swapped or shifted."""
        order, holds = list(self._best.run.order), self._best.run.holds
        kind = self._generator.random()
        if kind < self._hold_odds:
            return self._hold_back(order, dict(holds))
        if kind < (1 + self._hold_odds) / 2:
            place = order.index(self._one_of_the_latest(6))
            if place:
                order.insert(self._generator.randrange(place), order.pop(place))
            return order, holds
        first, second = self._generator.randrange(len(order)), self._generator.randrange(len(order))
        if self._generator.random() < 1 / 2:
            order[first], order[second] = order[second], order[first]
        else:
            order.insert(second, order.pop(first))
        return order, holds

    def _hold_back(self, order: list[int], holds: dict[int, int]) -> tuple[list[int], Mapping[int, int]]:
        # Some jobs that run before a late one are held until it has started, or one hold is dropped.
        if holds and self._generator.random() < self._hold_odds:
            del holds[self._generator.choice(list(holds))]
            return order, holds
        late = self._one_of_the_latest(4)
        starts, ends = self._best.run.starts_seconds, self._best.run.ends_seconds
        release_seconds = self._batch.release_seconds[late]
        in_the_way = [job for job in order if starts[job] < starts[late] and ends[job] > release_seconds]
        if in_the_way:
            most = min(_MOST_HOLDS_AT_A_TIME, len(in_the_way))
            held = self._generator.sample(in_the_way, self._generator.randint(1, most))
            holds.update(dict.fromkeys(held, late))
            # A hold is effective only on jobs behind the late one in the order.
            place, now = min(order.index(job) for job in held), order.index(late)
            if now > place:
                order.insert(place, order.pop(now))
        return order, holds

    def _one_of_the_latest(self, count: int) -> int:
        return self._latest[self._generator.randrange(min(count, len(self._latest)))]
