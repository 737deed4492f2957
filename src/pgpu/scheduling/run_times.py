"""How long jobs run: doubt about predicted durations, and slowdown by other jobs.

A predicted duration is taken as the median of a log-normal distribution: it is off by a factor, too long as likely as too
short. For a running job the distribution is conditioned on the time it has run so far.

The slowdown of a program is learnt from its runs beside different numbers of jobs. Other jobs never make it faster here,
whatever chance shows. Between two numbers seen, a GPU has room up to a point and is shared in proportion beyond it. Above the
largest number seen nothing is assumed, so larger numbers are tried. Which programs run beside it makes no difference.

Source: pool adjacent violators (Ayer et al., 1955).
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from pgpu.structs import Struct

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
