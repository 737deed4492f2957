"""What durations may turn out to be when they are known only roughly.

A prediction is taken for the median of a log-normal distribution: it is off by a factor, as likely too long as too short. Of
a job that runs already, only what is longer than it ran so far is left. It refuses to learn how good predictions are: told.
"""

import math
import random
import statistics
from collections.abc import Sequence
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
