"""Sets of jobs like those that people have, made from a seed: memory rigid, durations from seconds to an hour."""

import random
from collections.abc import Callable

from pgpu.scheduling.makespan import BatchJob
from pgpu.units import GIB, MIB

CARD_BYTES = 24_265 * MIB
"""P1's RTX 3090."""


def inference(seed: int) -> tuple[list[BatchJob], list[int]]:
    """Forty inference jobs on one card: small and alike, some of them long."""
    dice = random.Random(seed)
    jobs = [
        BatchJob(f"job{number}", dice.choice((1205, 1805, 2605, 4100)) * MIB, round(dice.lognormvariate(3.5, 1.0), 1))
        for number in range(40)
    ]
    return jobs, [CARD_BYTES]


def mixed(seed: int) -> tuple[list[BatchJob], list[int]]:
    """Twenty-eight jobs on one card: half inference, half training that takes a quarter to three quarters of it."""
    dice = random.Random(seed)
    jobs = []
    for number in range(28):
        if number % 2:
            jobs.append(BatchJob(f"job{number}", dice.randint(6, 18) * GIB, round(dice.lognormvariate(5.5, 0.8), 1)))
        else:
            jobs.append(BatchJob(f"job{number}", dice.randint(1, 4) * GIB, round(dice.lognormvariate(3.5, 1.0), 1)))
    return jobs, [CARD_BYTES]


SHARES = ((0.25, 5), (0.33, 4), (0.46, 2), (0.5, 3), (0.6, 1), (0.81, 4), (1.0, 6))
"""(Share of a card, weight): how the fractional requests of Alibaba's openb trace are distributed, coarsely."""


def cluster(seed: int, *, arrives: bool = False) -> tuple[list[BatchJob], list[int]]:
    """Sixty jobs on four cards with the shares that openb's pods ask for."""
    dice = random.Random(seed)
    shares, weights = zip(*SHARES, strict=True)
    jobs = []
    for number in range(60):
        share = dice.choices(shares, weights)[0]
        release = round(dice.uniform(0, 1500), 1) if arrives else 0.0
        duration = round(dice.lognormvariate(5.0, 1.0), 1)
        jobs.append(BatchJob(f"job{number}", int(share * CARD_BYTES), duration, release_seconds=release))
    return jobs, [CARD_BYTES] * 4


KINDS: dict[str, Callable[[int], tuple[list[BatchJob], list[int]]]] = {
    "40 inference jobs, 1 card": inference,
    "28 mixed jobs, 1 card": mixed,
    "60 jobs after openb, 4 cards": cluster,
    "the same with arrivals": lambda seed: cluster(seed, arrives=True),
}
