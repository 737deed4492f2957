"""Sets of jobs like those that people have, made from a seed: memory rigid, durations from seconds to an hour."""

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass

from pgpu.scheduling.batch_simulation import BatchJob
from pgpu.structs import replace
from pgpu.units import GIB, MIB

CARD_MIB = 24_265
"""P1's RTX 3090."""


@dataclass(frozen=True, slots=True)
class JobSet:
    """Jobs, and cards of one size."""

    jobs: tuple[BatchJob, ...]
    cards: int

    @property
    def capacity_bytes(self) -> list[int]:
        """What slices may sum to, by card."""
        return [CARD_MIB * MIB] * self.cards

    @property
    def work_seconds(self) -> float:
        """How long all cards would be full."""
        return sum(job.memory_bytes * job.duration_seconds for job in self.jobs) / sum(self.capacity_bytes)


def inference(seed: int) -> JobSet:
    """Forty inference jobs on one card: small and alike, some of them long."""
    dice = random.Random(seed)
    jobs = [
        BatchJob(f"job{number}", dice.choice((1205, 1805, 2605, 4100)) * MIB, round(dice.lognormvariate(3.5, 1.0), 1))
        for number in range(40)
    ]
    return JobSet(tuple(jobs), 1)


def first(jobs: JobSet, count: int) -> JobSet:
    """Return the first so many jobs of a set."""
    return dataclasses.replace(jobs, jobs=jobs.jobs[:count])


def mixed(seed: int) -> JobSet:
    """Twenty-eight jobs on one card: half inference, half training that takes a quarter to three quarters of it."""
    dice = random.Random(seed)
    jobs = []
    for number in range(28):
        if number % 2:
            jobs.append(BatchJob(f"job{number}", dice.randint(6, 18) * GIB, round(dice.lognormvariate(5.5, 0.8), 1)))
        else:
            jobs.append(BatchJob(f"job{number}", dice.randint(1, 4) * GIB, round(dice.lognormvariate(3.5, 1.0), 1)))
    return JobSet(tuple(jobs), 1)


SHARES = ((0.25, 5), (0.33, 4), (0.46, 2), (0.5, 3), (0.6, 1), (0.81, 4), (1.0, 6))
"""(Share of a card, weight): how the fractional requests of Alibaba's openb trace are distributed, coarsely."""


def cluster(seed: int, count: int, cards: int) -> JobSet:
    """Jobs on several cards with the shares that openb's pods ask for."""
    dice = random.Random(seed)
    shares, weights = zip(*SHARES, strict=True)
    jobs = []
    for number in range(count):
        memory_bytes = int(dice.choices(shares, weights)[0] * CARD_MIB) * MIB
        jobs.append(BatchJob(f"job{number}", memory_bytes, round(dice.lognormvariate(5.0, 1.0), 1)))
    return JobSet(tuple(jobs), cards)


def arriving(jobs: JobSet, seed: int, share: float) -> JobSet:
    """Return the same jobs, which come at random within a share of the time that they would fill the cards."""
    dice = random.Random(seed)
    within_seconds = share * jobs.work_seconds
    return dataclasses.replace(
        jobs,
        jobs=tuple(replace(job, release_seconds=round(dice.uniform(0, within_seconds), 1)) for job in jobs.jobs),
    )


KINDS: dict[str, Callable[[int], JobSet]] = {
    "40 inference jobs, 1 card": inference,
    "28 mixed jobs, 1 card": mixed,
    "60 jobs after openb, 4 cards": lambda seed: cluster(seed, 60, 4),
    "60 jobs after openb, 4 cards, arriving": lambda seed: arriving(cluster(seed, 60, 4), seed, 1.0),
    "20 jobs after openb, 2 cards": lambda seed: cluster(seed, 20, 2),
    "20 jobs after openb, 2 cards, arriving": lambda seed: arriving(cluster(seed, 20, 2), seed, 1.0),
}
"""The kinds that others have measured, and two of theirs with fewer jobs."""

SMALL_KINDS: dict[str, Callable[[int], JobSet]] = {
    "20 inference jobs, 1 card": lambda seed: first(inference(seed), 20),
    "10 mixed jobs, 1 card": lambda seed: first(mixed(seed), 10),
    "10 jobs after openb, 2 cards": lambda seed: cluster(seed, 10, 2),
    "12 jobs after openb, 2 cards, arriving": lambda seed: arriving(cluster(seed, 12, 2), seed, 1.0),
}
"""The same with so few jobs that a solver proves nearly every optimum."""

ALL_KINDS = SMALL_KINDS | KINDS
