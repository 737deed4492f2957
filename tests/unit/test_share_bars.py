"""Each bar of the benchmark of compute shares is missed by what it forbids, and by that alone."""

import copy
from typing import Any

import pytest
from benchmarks import monopolist
from benchmarks.share_accuracy import missed

PAIR = {"samples": 1000, "p50_ms": 1.5, "p99_ms": 2.5}
GOOD: dict[str, Any] = {
    "shares": [
        {
            "case": "5 ms",
            "asked": [0.3],
            "cost_ms": 5.0,
            "is_strict": False,
            "slices": "",
            "worst_points": 1.9,
            "switching": 0.03,
        }
    ],
    "streams": [{"share": 0.5, "cost_ms": 0.5, "kernels": 0.46}],
    "idle_time": {
        "borrower_got_alone": 0.99,
        "arrivals_asked": 20,
        "arrivals": 20,
        "taken_back_ms": {"median": 100.0, "worst": 110.0},
        "owner_asked": 0.7,
        "switching": 0.03,
        "owner_got": {"median": 0.69, "least": 0.67},
    },
    "light_neighbour": {"guaranteed": 0.7, "got": 0.69},
    "monopolist": {
        "samples_asked": 1000,
        "with_shares": PAIR,
        "without_pgpu": PAIR,
        "p99_to_without_pgpu": 1.0,
        "p99_to_preemption": 1.0,
    },
}


def test_a_measurement_that_keeps_every_bar_misses_none() -> None:
    assert missed(GOOD) == []


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("shares", 0, "worst_points"), 2.1),
        (("shares", 0, "switching"), 0.06),
        (("streams", 0, "kernels"), 0.44),
        (("idle_time", "borrower_got_alone"), 0.94),
        (("idle_time", "arrivals"), 19),
        (("idle_time", "taken_back_ms", "worst"), 201.0),
        (("idle_time", "owner_got", "least"), 0.65),
        (("light_neighbour", "got"), 0.6),
        (("monopolist", "p99_to_without_pgpu"), 2.1),
        (("monopolist", "p99_to_preemption"), 2.1),
        (("monopolist", "with_shares"), {**PAIR, "samples": 999}),
    ],
)
def test_what_a_bar_forbids_is_named(place: tuple[Any, ...], value: object) -> None:
    report = copy.deepcopy(GOOD)
    inner: Any = report
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    assert len(missed(report)) == 1


@pytest.mark.parametrize(("key", "value"), [("slices", "unequal_slices=3"), ("cost_ms", 200.0)])
def test_other_slices_and_longer_kernels_are_shown_without_a_bar(key: str, value: object) -> None:
    report = copy.deepcopy(GOOD)
    report["shares"][0].update({key: value, "worst_points": 19.0, "switching": 0.1})
    assert missed(report) == []


def test_switches_count_against_fair_jobs_alone_since_strict_ones_are_asked_for_all_of_their_share() -> None:
    report = copy.deepcopy(GOOD)
    report["shares"][0].update({"is_strict": True, "switching": 0.12})
    assert missed(report) == []


def test_a_wait_as_long_as_the_hardware_s_own_misses_nothing() -> None:
    assert monopolist.missed(GOOD["monopolist"]) == []
