"""Jobs of many submissions on busy GPUs, replayed in time steps: with the rule of `start_rule` against filled GPUs."""

from collections.abc import Sequence
from statistics import fmean

import pytest
from benchmarks.start_rule_replay import Arrival, Kind, Law, Replay, arrivals, ratios
from hypothesis import given, settings
from hypothesis import strategies as st

from pgpu.model import Objective, Request
from pgpu.scheduling import Candidate
from pgpu.structs import replace
from pgpu.units import GIB


def linear(kinds: Sequence[Kind]) -> list[float]:
    return [max(1.0, sum(each.demand for each in kinds))] * len(kinds)


def super_linear(kinds: Sequence[Kind]) -> list[float]:
    return [max(1.0, sum(each.demand for each in kinds) ** 1.3)] * len(kinds)


def max_min(kinds: Sequence[Kind]) -> list[float]:
    """Light jobs are not slowed down."""
    left, rest, level = 1.0, len(kinds), 1.0
    for demand in sorted(each.demand for each in kinds):
        if demand > left / rest:
            level = left / rest
            break
        left, rest = left - demand, rest - 1
    return [max(1.0, each.demand / level) for each in kinds]


def no_contention(kinds: Sequence[Kind]) -> list[float]:
    return [1.0] * len(kinds)


SMALL = [
    *(Kind(0.02, 1, 30), Kind(0.05, 1, 120), Kind(0.1, 2, 60), Kind(0.25, 2, 300)),
    *(Kind(0.5, 2, 180), Kind(0.8, 2, 600), Kind(0.95, 2, 900)),
]
HEAVY = [Kind(0.5, 2, 300), Kind(1.0, 2, 300), Kind(1.0, 1, 120), Kind(0.8, 1, 600)]
LIGHT = [replace(kind, demand=0.01) for kind in SMALL]
LIMITED_BY_MEMORY = [
    *(Kind(0.02, 1, 30), Kind(0.05, 2, 120), Kind(0.1, 3, 60), Kind(0.25, 4, 300)),
    *(Kind(0.5, 6, 180), Kind(0.8, 5, 600), Kind(0.95, 8, 900)),
]


@pytest.mark.parametrize(
    ("kinds", "law", "most"),
    [
        (SMALL, linear, 0.99),
        (SMALL, super_linear, 0.99),
        (SMALL, max_min, 1.0),
        (HEAVY, linear, 0.96),
        (HEAVY, super_linear, 0.92),
        (HEAVY, max_min, 0.95),
        ([Kind(1.0, 1, 300)], linear, 1.0),
        (LIMITED_BY_MEMORY, linear, 1.02),
        (LIMITED_BY_MEMORY, super_linear, 1.02),
        (LIMITED_BY_MEMORY, max_min, 1.02),
    ],
)
def test_jobs_that_came_together_end_earlier_on_average_where_time_is_short(
    kinds: Sequence[Kind], law: Law, most: float
) -> None:
    """Where memory is what they wait for, the rule changes little."""
    found = [ratios(arrivals(kinds, 40, seed), law) for seed in range(3)]
    assert fmean(mean for mean, _ in found) <= most
    assert fmean(end for _, end in found) <= 1.03


@pytest.mark.parametrize("law", [linear, super_linear, max_min])
def test_a_stream_of_jobs_is_served_earlier_on_average(law: Law) -> None:
    found = [ratios(arrivals(SMALL, 60, seed, load=0.9), law) for seed in range(3)]
    assert fmean(mean for mean, _ in found) <= 0.97
    assert fmean(end for _, end in found) <= 1.03


def test_a_stream_of_short_jobs_at_most_doubles_the_response_of_a_job_of_another_user() -> None:
    """Jobs of 20 s are never held back, and memory takes four of them: the GPU is never less busy."""
    short = Candidate("", Request(5 * GIB), duration_seconds=20.0, usual_demand=0.9)
    jobs = [Arrival(Kind(0.9, 5, 20), 20.0, replace(short, job_id=f"short{number}")) for number in range(150)]
    long = Candidate("long", Request(4 * GIB), owner_uid=1, duration_seconds=300.0, usual_demand=0.9)
    jobs.append(Arrival(Kind(0.9, 4, 300), 300.0, long))
    held, soonest = (
        Replay(jobs, linear, 1, each).responses["long"] for each in (Objective.RESPONSE, Objective.SOONEST)
    )
    assert held <= 2 * soonest


def test_demands_that_are_off_by_a_third_are_good_enough() -> None:
    found = [ratios(arrivals(SMALL, 40, seed, error=0.33), linear) for seed in range(3)]
    assert fmean(mean for mean, _ in found) <= 0.99


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10_000), gpus=st.integers(1, 3), count=st.integers(1, 40))
def test_light_jobs_that_do_not_contend_end_as_with_filled_gpus(seed: int, gpus: int, count: int) -> None:
    mean, end = ratios(arrivals(LIGHT, count, seed), no_contention, gpus)
    assert mean <= 1.02
    assert end <= 1.02


@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 10_000),
    gpus=st.integers(1, 2),
    law=st.sampled_from([linear, super_linear, max_min, no_contention]),
)
def test_no_gpu_is_idle_and_no_job_is_held_for_longer_than_it_may_be(seed: int, gpus: int, law: Law) -> None:
    """`Replay` checks it in each round."""
    jobs = arrivals([*SMALL, Kind(1.0, 1, 7200)], 20, seed)
    assert len(Replay(jobs, law, gpus, Objective.RESPONSE).responses) == 20
