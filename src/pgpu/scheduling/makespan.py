"""In which order a batch of jobs ends soonest (`--objective makespan`).

No single order wins on every batch, so several are played on the predicted durations, and the best is improved by moving
jobs about. Jobs slow each other down: it may pay to run fewer at once than fit, so that is tried, too. It plays the future
of what it is told and knows no clock; who calls it plans again when a job ends early or late.

Source: P1 (its 25 jobs end in 17.97 s as 12 + 13, in 25.56 s as 20 + 5); list scheduling (Graham, 1969).
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pgpu.scheduling.replay import Batch, Played, play

_SEED = 1
"""The same batch always gets the same plan."""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """One job of a batch, on one GPU."""

    job_id: str
    memory_bytes: int
    duration_seconds: float
    """Predicted, alone on its GPU."""

    compute_share: float = 0.0
    """Of a GPU, 0 to 1; what it would use alone, if that is known."""

    release_seconds: float = 0.0
    """Not before; seconds from now."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What to do with a batch."""

    order: tuple[str, ...]
    """Ids of the jobs; at each moment those that fit start in this order."""

    most_at_once: int
    """So many of them on one GPU at most, though more may fit."""

    end_seconds: float
    """When the last will end, from now."""


def plan_batch(
    jobs: Sequence[BatchJob],
    capacity_bytes: Sequence[int],
    *,
    busy: Sequence[tuple[int, int, float]] = (),
    slowdown: Callable[[int], float] | None = None,
    tries: int = 3000,
) -> BatchPlan:
    """Find an order that ends a batch early.

    Args:
        jobs: What waits.
        capacity_bytes: What slices may sum to, by GPU.
        busy: (GPU's place in `capacity_bytes`, bytes, seconds until its end) of each job that runs already.
        slowdown: By how much each of so many jobs on one GPU is slowed down, at least 1; None if they are not.
        tries: How many changes of the best order are tried; about 3,000 take a second for 40 jobs.

    Returns:
        The best plan found; never worse than the best of the orders that are tried first.
    """
    batch = Batch.of(jobs, capacity_bytes, busy, slowdown)
    best = min(
        (_played(batch, order, most) for order, most in _first_guesses(batch)), key=lambda plan: plan.end_seconds
    )
    best = _improved(batch, best, tries)
    return BatchPlan(tuple(jobs[index].job_id for index in best.order), best.most_at_once, best.end_seconds)


def _played(batch: Batch, order: Sequence[int], most_at_once: int) -> Played:
    return play(batch, order, most_at_once)


def _first_guesses(batch: Batch) -> Iterator[tuple[list[int], int]]:
    count = len(batch.memory_bytes)
    orders = [sorted(range(count), key=key, reverse=True) for key in _keys(batch)]
    orders.append(list(range(count)))
    limits = range(1, count + 1) if batch.slowdown is not None else (count,)
    for most_at_once in limits:
        for order in orders:
            yield order, most_at_once


def _keys(batch: Batch) -> tuple[Callable[[int], float], ...]:
    most = max(batch.capacity_bytes, default=1)
    share = [memory / most for memory in batch.memory_bytes]
    seconds = batch.duration_seconds
    return (
        lambda job: seconds[job],
        lambda job: share[job],
        lambda job: share[job] * seconds[job],
        lambda job: max(share[job], batch.compute_share[job]) * seconds[job],
        lambda job: (share[job] > 0.5) * seconds[job] + 1e-3 * share[job] * seconds[job],
    )


def _improved(batch: Batch, best: Played, tries: int) -> Played:
    """Move jobs about, keep what ends no later; stop where nothing can end sooner."""
    dice = random.Random(_SEED)  # noqa: S311 - spreads the search, guards nothing
    least_seconds = batch.least_seconds()
    for _ in range(tries):
        if best.end_seconds <= least_seconds * (1 + 1e-9) or len(best.order) < 2:
            break
        changed = play(batch, _neighbour(best, dice), best.most_at_once)
        if changed.value <= best.value:
            best = changed
    return best


def _neighbour(played: Played, dice: random.Random) -> list[int]:
    """Swap two jobs, or pull one forward: more often one of those that end last."""
    order = list(played.order)
    if dice.random() < 0.5:
        late = played.latest[dice.randrange(min(4, len(played.latest)))]
        place = order.index(late)
        if place:
            order.insert(dice.randrange(place), order.pop(place))
            return order
    first, second = dice.randrange(len(order)), dice.randrange(len(order))
    if dice.random() < 0.5:
        order[first], order[second] = order[second], order[first]
    else:
        order.insert(second, order.pop(first))
    return order
