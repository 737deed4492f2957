"""How much longer a program runs beside others, learnt from its runs.

What is known are durations beside some numbers of jobs. Companions never make a job faster here, whatever chance shows; and
between two numbers a GPU has room up to a point, and is shared in proportion from there on. Beyond the largest number seen
nobody knows, and nothing is held against trying it. It refuses to tell programs that stand beside it apart.

Source: pool adjacent violators (Ayer et al., 1955).
"""

import math
import random
import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

KNOWN = 0.2
"""Up to so much doubt a duration is taken for known: a fifth more or less costs a plan less than hedging against it does."""

_SURE = 2.0
"""Standard errors: one chance in forty that it is not so."""

_LONGEST = 1 - 1e-9
"""No draw is further out than this quantile."""


def expected_left_seconds(duration_seconds: float, elapsed_seconds: float) -> float:
    """Return how long a job will probably still run: one that runs longer than it should has as long again before it."""
    return duration_seconds - elapsed_seconds if duration_seconds > elapsed_seconds else elapsed_seconds


def possible_left_seconds(
    duration_seconds: float, elapsed_seconds: float, doubt: float, count: int, dice: random.Random
) -> list[float]:
    """Draw how long a job may still run, evenly from the shortest to the longest, in random order.

    Args:
        duration_seconds: Predicted, of the whole run; above 0.
        elapsed_seconds: Run so far.
        doubt: Standard deviation of the logarithm of the true duration over the predicted one; 0 if it is known.
        count: So many draws.
        dice: Shuffles them.
    """
    if doubt <= 0:
        return [expected_left_seconds(duration_seconds, elapsed_seconds)] * count
    if duration_seconds <= 0:
        return [elapsed_seconds] * count
    error = NormalDist(math.log(duration_seconds), doubt)
    passed = error.cdf(math.log(elapsed_seconds)) if elapsed_seconds > 0 else 0.0
    if passed >= _LONGEST:
        return [elapsed_seconds] * count
    quantiles = (passed + (1 - passed) * (draw + 0.5) / count for draw in range(count))
    left = [math.exp(error.inv_cdf(min(quantile, _LONGEST))) - elapsed_seconds for quantile in quantiles]
    dice.shuffle(left)
    return [max(0.0, seconds) for seconds in left]


def is_surely_less(these: Sequence[float], those: Sequence[float]) -> bool:
    """Whether one thing comes out smaller than another on average, by more than chance explains.

    Args:
        these: How it came out in several ways that things may turn out; at least one.
        those: How the other did, in the same ways.
    """
    less = [other - one for one, other in zip(these, those, strict=True)]
    mean = statistics.fmean(less)
    return mean > 0 and mean >= _SURE * statistics.pstdev(less) / math.sqrt(len(less))


Slowdown = Callable[[int], float]
"""By how much each of so many jobs on one GPU is slowed down, at least 1."""


LEAST_RUNS = 5
"""Below, a difference between two numbers of companions may be chance."""

RUNS_OF_A_NUMBER = 15
"""So many of the newest are believed, of each number of jobs on the GPU."""

_PRIOR_RUNS = 0.25
"""The prior doubt counts as much as so many runs: three that were alike say that the next will be, too."""


@dataclass(frozen=True, slots=True)
class SlowdownCurve:
    """How long one program runs."""

    alone_seconds: float
    levels: tuple[tuple[int, float], ...]
    """(Jobs on its GPU, by how much they slow it down), ascending in both; at least one."""

    doubt: float
    """Standard deviation of the logarithm of its durations around that."""

    def slowdown(self, count: int) -> float:
        """Return by how much it is slowed down, 1 or more, where its GPU has so many jobs, itself counted."""
        place = bisect_right(self.levels, (count, math.inf))
        if not place:
            return 1.0
        seen_count, before = self.levels[place - 1]
        if seen_count == count or place == len(self.levels):
            return before
        next_count, next_slowdown = self.levels[place]
        return max(before, next_slowdown * count / next_count)


def fit_slowdown_curve(runs: Iterable[tuple[float, float]], prior_doubt: float) -> SlowdownCurve | None:
    """Learn from runs.

    Args:
        runs: Duration in seconds, and how many jobs the GPU had on average, itself counted; newest first.
        prior_doubt: What is believed of a program without history.

    Returns:
        None without runs.
    """
    seen = _newest_of_each_number(runs)
    if not seen:
        return None
    levels = _ascending(seen) if len(seen) >= LEAST_RUNS else [(1, statistics.median(log for log, _ in seen))]
    base = levels[0][1]
    stretch = SlowdownCurve(math.exp(base), tuple((count, math.exp(level - base)) for count, level in levels), 0.0)
    off = sum((log - base - math.log(stretch.slowdown(count))) ** 2 for log, count in seen)
    compared = len(seen) - 1  # one run says nothing of how far apart runs are
    doubt = math.sqrt((off + _PRIOR_RUNS * prior_doubt**2) / (compared + _PRIOR_RUNS))
    return SlowdownCurve(stretch.alone_seconds, stretch.levels, doubt)


def mean_slowdown(jobs: Iterable[tuple[SlowdownCurve | None, float]]) -> Slowdown | None:
    """Return how jobs slow each other down on average.

    Args:
        jobs: Each one's stretch, None if nobody knows it, and its seconds: long ones count for more.

    Returns:
        None if no companions are known to cost time.
    """
    weighed = list(jobs)
    known = [(stretch, weight) for stretch, weight in weighed if stretch is not None and len(stretch.levels) > 1]
    total = sum(weight for _, weight in weighed)
    if not known or total <= 0:
        return None
    return lambda count: 1.0 + sum(weight * (stretch.slowdown(count) - 1.0) for stretch, weight in known) / total


def _newest_of_each_number(runs: Iterable[tuple[float, float]]) -> list[tuple[float, int]]:
    """Return (logarithm, number): a number that was dear is not forgotten because it was avoided since."""
    found: dict[int, list[float]] = {}
    for seconds, together in runs:
        logs = found.setdefault(max(1, round(together)), [])
        if seconds > 0 and len(logs) < RUNS_OF_A_NUMBER:
            logs.append(math.log(seconds))
    return [(log, count) for count, logs in found.items() for log in logs]


def _ascending(seen: Sequence[tuple[float, int]]) -> list[tuple[int, float]]:
    """Return (number, level of the logarithm), each number's median pooled with its neighbours' until none falls."""
    by_count: dict[int, list[float]] = {}
    for log, count in seen:
        by_count.setdefault(count, []).append(log)
    pools: list[tuple[list[int], float, int]] = []
    for count, logs in sorted(by_count.items()):
        pools.append(([count], statistics.median(logs), len(logs)))
        while len(pools) > 1 and pools[-2][1] >= pools[-1][1]:
            (counts, level, weight), (more, next_level, next_weight) = pools[-2:]
            pooled = (level * weight + next_level * next_weight) / (weight + next_weight)
            pools[-2:] = [([*counts, *more], pooled, weight + next_weight)]
    return [(count, level) for counts, level, _ in pools for count in sorted({counts[0], counts[-1]})]
