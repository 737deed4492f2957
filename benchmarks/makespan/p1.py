"""P1's 25 jobs, slowed down by each other as in P1's table: how soon the last ends.

Planned with the table; and as the engine plans them, which has no prior information and learns from one batch after another.
"""

import random
import statistics
from collections.abc import Iterator

from benchmarks.makespan.sets import CARD_MIB
from benchmarks.replaying import (
    NO_HEADROOM,
    Arrival,
    Policy,
    as_the_engine,
    candidate_of,
    cards,
    default_objective,
    fifo,
    makespan_objective,
    replay,
)

from pgpu.engine.admission.queue_plan import STRETCH_RUNS, fit_curve
from pgpu.scheduling import Headroom
from pgpu.units import MIB

JOB_BYTES = 1205 * MIB
JOBS = 25
BEST_SECONDS = 17.97
"""P1's table: 12 and then 13."""

LONGEST_SECONDS = {
    2: 8.502, 3: 8.535, 4: 8.727, 5: 8.932, 6: 9.135, 7: 9.21, 8: 9.313, 9: 9.182, 10: 8.272, 11: 8.454, 12: 8.84,
    13: 9.131, 14: 9.651, 15: 10.922, 16: 10.401, 17: 10.906, 18: 15.053, 19: 15.987, 20: 16.632,
}  # fmt: skip
"""P1's table: by the number of jobs that run together, when the last of them ends. Alone is not in it: taken as two."""

LEARNED_BATCHES = 5
"""So many batches in a row are replayed, each with what those before it taught."""

ALONE_SECONDS = min(LONGEST_SECONDS.values())


def slowdown(count: int) -> float:
    """Return what so many jobs together take, over the least that any number takes."""
    return LONGEST_SECONDS[min(max(count, 2), 20)] / ALONE_SECONDS


def ends() -> dict[str, float]:
    """Replay the 25 with each policy; return the seconds until the last ends."""
    batch = makespan_objective(20_000, 2_000, slowdown=slowdown)
    return {
        "planned with P1's table": _end(batch, NO_HEADROOM),
        "planned with P1's table, headroom 3 %": _end(batch, Headroom()),
        "default objective": _end(default_objective, NO_HEADROOM),
        "first come, first served": _end(fifo, NO_HEADROOM),
        "first come, first served, headroom 3 %": _end(fifo, Headroom()),
    }


def ends_as_learnt() -> dict[str, float]:
    """Replay batches in a row; return the seconds of each by how many there were before."""
    return {f"learnt from {count} batches": end for count, end in enumerate(learned_ends(LEARNED_BATCHES))}


def learned_ends(batches: int, seed: int = 1, noise: float = 0.02) -> Iterator[float]:
    """Yield how soon each of several batches ends, one after another, with the engine's history so far.

    Args:
        batches: Of 25 jobs each.
        seed: Of the noise.
        noise: Standard deviation of the logarithm of each job's work.
    """
    dice = random.Random(seed)
    runs: list[tuple[float, float]] = []
    for _ in range(batches):
        known = fit_curve(reversed(runs[-STRETCH_RUNS:]))
        predicted_seconds = statistics.median(seconds for seconds, _ in runs) if runs else None
        arrivals = [
            Arrival(
                candidate_of(f"job{number}", JOB_BYTES, 0.0, predicted_seconds),
                ALONE_SECONDS * dice.lognormvariate(0, noise),
            )
            for number in range(JOBS)
        ]
        curves = {each.candidate.job_id: known for each in arrivals} if known else {}
        fates = replay(cards(1, CARD_MIB * MIB), arrivals, as_the_engine(curves), slowdown=slowdown)
        runs += [(fate.ended_seconds - fate.started_seconds, fate.together) for fate in fates.values()]
        yield round(max(fate.ended_seconds for fate in fates.values()), 3)


def _end(policy: Policy, headroom: Headroom) -> float:
    arrivals = [
        Arrival(candidate_of(f"job{number}", JOB_BYTES, 0.0, ALONE_SECONDS), ALONE_SECONDS) for number in range(JOBS)
    ]
    fates = replay(cards(1, CARD_MIB * MIB), arrivals, policy, headroom=headroom, slowdown=slowdown)
    return round(max(fate.ended_seconds for fate in fates.values()), 3)
