"""In which order a batch of jobs ends soonest (`--objective makespan`).

No single order wins on every batch, so several are played on the predicted durations, and the best is improved by moving
jobs about and by having some let a longer one start first. Jobs slow each other down: it may pay to run fewer at once than
fit, so that is tried, too. It plays the future of what it is told and knows no clock; who calls it plans again when a job
ends early or late, or a new one comes.

Source: P1 (its 25 jobs end in 17.97 s as 12 + 13, in 25.56 s as 20 + 5); list scheduling (Graham, 1969).
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pgpu.scheduling.batch import NO_HOLDS, Batch, BatchJob, Busy, Played, Slowdown, play

STEPS_PER_SECOND = 60_000
"""Jobs that are played in a second of an ordinary core, roughly: what `plan_batch` counts its effort in."""

_SEED = 1
"""The same batch always gets the same plan."""

_MOST_HOLDS_AT_A_TIME = 3


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What to do with a batch: at each moment those that fit start in this order."""

    order: tuple[str, ...]
    """Ids of the jobs."""

    most_at_once: int = 0
    """So many jobs on one GPU at most, though more may fit; 0 for as many as fit."""

    holds: Mapping[str, str] = field(default_factory=dict)
    """By id of a job: who of those before it in the order must have started first, though it fits."""

    end_seconds: float = 0.0
    """When the last will end, from now."""

    least_seconds: float = 0.0
    """No plan ends before; equal to `end_seconds` where this one is known to be the best."""


def plan_batch(
    jobs: Sequence[BatchJob],
    capacity_bytes: Sequence[int],
    *,
    busy: Sequence[Busy] = (),
    slowdown: Slowdown | None = None,
    effort: int = STEPS_PER_SECOND,
) -> BatchPlan:
    """Find an order that ends a batch early.

    Pure: the same arguments always give the same plan. It stops where nothing can end sooner.

    Args:
        jobs: What waits, each on one GPU.
        capacity_bytes: What slices may sum to, by GPU.
        busy: What runs already; it fits.
        slowdown: By how much each of so many jobs on one GPU is slowed down, at least 1; None if they are not.
        effort: So many jobs are played at most, those of the first orders not counted. Default: about a second.

    Returns:
        The best plan found; never worse than the best of the orders that are tried first.

    Raises:
        ValueError: A job fits on none of the GPUs.
    """
    batch = Batch.of(jobs, capacity_bytes, busy, slowdown)
    guesses = (play(batch, order, NO_HOLDS, most_at_once) for order, most_at_once in _first_guesses(batch))
    best = min(guesses, key=lambda played: played.value)
    best = _Search(batch, best).improved(effort // max(1, len(jobs)))
    ids = [job.job_id for job in jobs]
    return BatchPlan(
        tuple(ids[place] for place in best.order),
        best.most_at_once,
        {ids[job]: ids[first] for job, first in best.holds.items()},
        best.end_seconds,
        batch.least_seconds(),
    )


def _first_guesses(batch: Batch) -> Iterator[tuple[list[int], int]]:
    places = range(len(batch.memory_bytes))
    orders = [list(places), *(sorted(places, key=key, reverse=True) for key in _keys(batch))]
    for most_at_once in (0, *range(1, len(batch.pace))) if batch.is_slowed else (0,):
        for order in orders:
            yield order, most_at_once


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


class _Search:
    """Local search from one plan: a change is kept if the batch ends no later."""

    def __init__(self, batch: Batch, best: Played) -> None:
        self._batch = batch
        self._least_seconds = batch.least_seconds()
        self._dice = random.Random(_SEED)  # noqa: S311 - spreads the search, guards nothing
        self._hold_odds = 0.3 if any(batch.release_seconds) else 0.15
        self._keep(best)

    def improved(self, tries: int) -> Played:
        """Return the best plan that so many changes lead to."""
        for _ in range(tries):
            if self._best.end_seconds <= self._least_seconds * (1 + 1e-9) or len(self._best.order) <= 1:
                break
            order, holds = self._changed()
            played = play(self._batch, order, holds, self._best.most_at_once)
            if played.value <= self._best.value:
                self._keep(played)
        return self._best

    def _keep(self, played: Played) -> None:
        self._best = played
        self._latest = sorted(played.order, key=lambda job: -played.ends_seconds[job])

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
        starts, ends = self._best.starts_seconds, self._best.ends_seconds
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
