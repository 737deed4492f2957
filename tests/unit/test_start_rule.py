"""Which job that fits waits for a less busy GPU: the rule for one GPU, and in one round of admission."""

import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.model import Batch, Gpu, Objective, Request, SharingMode, SharingWish, Slice
from pgpu.scheduling import Admission, Candidate, Cause, GpuRoom, Held, admit, expected_starts
from pgpu.scheduling.admission_round import PredictSlowdowns, ProfiledCall
from pgpu.scheduling.even_waves import HALF
from pgpu.scheduling.start_rule import (
    HOLD_SECONDS,
    INTERFERENCE,
    LEAST_SECONDS,
    MOST_KINDS,
    START_UP_SECONDS,
    Load,
    may_start_beside,
)
from pgpu.structs import replace
from pgpu.units import GIB

BUSY = Candidate("new", Request(GIB), duration_seconds=300.0, usual_demand=0.9)


def room(index: int = 0, taken_gib: int = 1) -> GpuRoom:
    return GpuRoom(Gpu(f"GPU-{index}", "Test", index, 20 * GIB, "1.0", is_simulated=True), 0, 0, taken_gib * GIB)


def running(
    demand: float | None, usual_demand: float | None = None, *, gpu: int = 0, duration: float | None = 300.0
) -> Held:
    slices = (Slice(f"GPU-{gpu}", GIB),)
    return Held(f"running{gpu}", 0, slices, 0.0, duration_seconds=duration, demand=demand, usual_demand=usual_demand)


def test_a_job_waits_beside_one_that_needs_the_gpu_as_much_and_the_reason_has_figures() -> None:
    admission = admit([room()], [BUSY], 70.0, held=[running(0.8)])
    assert not admission.grants
    assert admission.holds_back
    [wait] = admission.waits
    assert wait.cause is Cause.BUSY
    assert wait.reason == (
        "waits up to 4 min for a less busy GPU: the jobs there need 80% of its time, and would end later beside it"
    )


def test_the_reason_names_the_demand_on_the_gpus_where_the_job_fits() -> None:
    admission = admit([room(0, 20), room(1)], [BUSY], 70.0, held=[running(0.1, gpu=0), running(0.8, gpu=1)])
    assert "the jobs there need 80% of its time" in admission.waits[0].reason


def test_only_so_many_kinds_of_jobs_are_tried_in_a_round_and_the_others_wait_behind_them() -> None:
    """Otherwise a queue of ten thousand different programs would take seconds in each round."""
    waiting = [replace(BUSY, job_id=f"job{number}", duration_seconds=300.0 + number) for number in range(100)]
    light = replace(BUSY, job_id="light", usual_demand=0.1, duration_seconds=500.0)
    batch = replace(BUSY, job_id="batch", batch=Batch("batch", 1))
    admission = admit([room()], [*waiting, light, batch], 70.0, held=[running(0.8)])
    assert [grant.job_id for grant in admission.grants] == ["batch"]
    reasons = {wait.job_id: wait.reason for wait in admission.waits}
    untried = {job_id for job_id, reason in reasons.items() if "64 other kinds of jobs that wait for one" in reason}
    assert len(untried) == len(reasons) - MOST_KINDS
    assert "light" in untried


@pytest.mark.parametrize(
    "candidate",
    [
        replace(BUSY, request=replace(BUSY.request, objective=Objective.SOONEST)),
        replace(BUSY, deadline_seconds=1e9),
        replace(BUSY, request=replace(BUSY.request, priority=1)),
        replace(BUSY, usual_demand=None),
        replace(BUSY, usual_demand=0.2),
        replace(BUSY, duration_seconds=None),
        replace(BUSY, duration_seconds=LEAST_SECONDS - 1),
        replace(BUSY, eligible_at_seconds=-300.0),
        replace(BUSY, eligible_at_seconds=-HOLD_SECONDS, duration_seconds=7200.0),
        replace(BUSY, request=replace(BUSY.request, compute_share=0.3)),
    ],
    ids=[
        "soonest",
        "limited wait",
        "urgent",
        "unknown",
        "light",
        "unknown length",
        "short",
        "held for its length",
        "held for half an hour",
        "share",
    ],
)
def test_other_jobs_start_where_they_fit(candidate: Candidate) -> None:
    assert admit([room()], [candidate], 0.0, held=[running(0.8)]).grants


@pytest.mark.parametrize(
    "there",
    [
        running(None),
        running(0.8, 0.01),
        running(0.01, 0.8),
        running(0.8, duration=None),
        running(0.8, duration=START_UP_SECONDS - 1),
    ],
    ids=["not measured", "light before", "light now", "without an end", "about to end"],
)
def test_a_job_starts_beside_one_that_is_not_known_to_delay_it(there: Held) -> None:
    assert admit([room()], [BUSY], 0.0, held=[there]).grants


def test_what_earlier_runs_needed_counts_until_a_job_is_measured() -> None:
    assert not admit([room()], [BUSY], 0.0, held=[running(None, 0.8)]).grants


def test_a_job_starts_on_the_gpu_that_has_time_for_it_although_the_other_fits_it_better() -> None:
    light, busy = running(0.05, gpu=0), running(0.8, gpu=1)
    admission = admit([room(0), room(1, taken_gib=18)], [BUSY], 0.0, held=[light, busy])
    assert [part.gpu_uuid for grant in admission.grants for part in grant.slices] == ["GPU-0"]


def test_jobs_that_arrive_together_are_held_behind_the_one_that_starts() -> None:
    waiting = [replace(BUSY, job_id=f"job{number}") for number in range(5)]
    admission = admit([room(0, 0), room(1, 0)], waiting, 0.0)
    assert len(admission.grants) == 2
    assert {wait.cause for wait in admission.waits} == {Cause.BUSY}


def test_a_batch_that_fits_at_once_starts_at_once_however_busy_it_is() -> None:
    batch = Batch("job0", 12)
    waiting = [replace(BUSY, job_id=f"job{number}", batch=batch) for number in range(12)]
    assert len(admit([room(taken_gib=0)], waiting, 0.0).grants) == 12


def test_a_batch_that_fits_at_once_starts_at_once_beside_a_job_of_another_program() -> None:
    waiting = [replace(BUSY, job_id=f"job{number}", batch=Batch("job0", 12)) for number in range(12)]
    assert len(admit([room()], waiting, 0.0, held=[running(0.03)]).grants) == 12


def test_a_batch_that_needs_several_waves_starts_its_first_beside_a_busy_job() -> None:
    waiting = [replace(BUSY, job_id=f"job{number}", batch=Batch("job0", 25)) for number in range(25)]
    admission = admit([room()], waiting, 0.0, held=[running(0.8)])
    assert len(admission.grants) == 13
    assert {wait.cause for wait in admission.waits} == {Cause.WAVE}


def test_a_job_on_two_gpus_reserves_memory_although_another_job_is_held_back() -> None:
    two = replace(BUSY, job_id="two", owner_uid=5, request=Request(8 * GIB, gpu_count=2))
    long = Candidate("long", Request(14 * GIB), owner_uid=6, duration_seconds=3600.0)
    full = replace(running(0.9, gpu=0), slices=(Slice("GPU-0", 18 * GIB),))
    admission = admit([room(0, 18), room(1)], [BUSY, two, long], 0.0, held=[full, running(0.8, gpu=1)])
    assert {wait.job_id: wait.cause for wait in admission.waits} == {
        "new": Cause.BUSY,
        "two": Cause.MEMORY,
        "long": Cause.TURN,
    }


def test_a_job_behind_one_that_is_held_back_reserves_memory() -> None:
    big = Candidate("big", Request(19 * GIB + GIB // 2), owner_uid=5)
    small = Candidate("small", Request(6 * GIB), owner_uid=6, duration_seconds=3600.0)
    first = replace(BUSY, owner_uid=7)
    admission = admit([room()], [first, big, small], 0.0, held=[running(0.8)])
    assert [wait.job_id for wait in admission.waits] == ["new", "big", "small"]
    assert {wait.job_id: wait.cause for wait in admission.waits} == {
        "new": Cause.BUSY,
        "big": Cause.MEMORY,
        "small": Cause.TURN,
    }


loads = st.builds(Load, st.floats(0, 1), st.floats(0, 1e5) | st.just(math.inf), st.booleans())


@given(st.lists(loads, max_size=20), loads)
def test_a_gpu_that_has_time_always_takes_one_more(there: list[Load], new: Load) -> None:
    total = sum(each.demand for each in there)
    if total < HALF or total + new.demand <= 1:
        assert may_start_beside(there, new)


@given(st.floats(0.5, 1), st.floats(0.5, 1), st.floats(1_000, 1e5))
def test_a_short_job_starts_beside_a_long_one(long_demand: float, demand: float, left_seconds: float) -> None:
    assert may_start_beside([Load(long_demand, left_seconds)], Load(demand, left_seconds / 10))


# Programs with profiles: "new" waits, "old" runs.

NEW, OLD = ("new", 0), ("old", 0)
PROFILED = replace(BUSY, profiled=NEW, request=replace(BUSY.request, sharing=SharingWish.MPS))


def predicting(pairs: Mapping[ProfiledCall, tuple[float, float]]) -> PredictSlowdowns:
    """Predict slowdowns of each of these programs and of "new" together, and none of anything else but one program alone."""

    def predict(_gpu_uuid: str, calls: Sequence[ProfiledCall]) -> Sequence[float] | None:
        if len(calls) < 2:
            return (1.0,) * len(calls)
        return pairs.get(calls[0]) if len(calls) == 2 and calls[1] == NEW else None

    return predict


def admitted(candidate: Candidate, there: Held, slowdowns: tuple[float, float], now: float = 70.0) -> Admission:
    return admit([room()], [candidate], now, held=[there], predict=predicting({OLD: slowdowns}))


def test_a_pair_that_is_predicted_to_lose_waits_although_its_demands_fit_and_the_reason_names_the_profiles() -> None:
    light, there = replace(PROFILED, usual_demand=0.1), replace(running(None, 0.1), profiled=OLD)
    [wait] = admitted(light, there, (2.5, 3.14)).waits
    assert wait.cause is Cause.BUSY
    assert wait.reason == (
        "waits up to 4 min for a less busy GPU: by their profiles, one of the jobs would take 3.1 times as long there"
    )
    assert admit([room()], [light], 70.0, held=[there]).grants  # no prediction


def test_a_pair_that_is_predicted_not_to_interfere_starts_although_its_demands_do_not_fit() -> None:
    there = replace(running(0.9), profiled=OLD)
    assert admitted(PROFILED, there, (1.02, INTERFERENCE)).grants


def test_in_time_slices_demands_decide_whatever_is_predicted() -> None:
    sliced, there = replace(PROFILED, request=BUSY.request), replace(running(0.9), profiled=OLD)
    [wait] = admitted(sliced, there, (1.0, 1.0)).waits
    assert "of its time" in wait.reason
    assert admitted(replace(sliced, usual_demand=0.05), there, (9.0, 9.0)).grants


def test_a_job_starts_beside_one_that_is_measured_to_pause_whatever_is_predicted() -> None:
    assert admitted(PROFILED, replace(running(0.1), profiled=OLD), (3.0, 3.0)).grants


def test_a_job_under_mps_waits_only_if_a_prediction_is_known() -> None:
    candidate, there = replace(PROFILED, usual_demand=None), replace(running(None), mode=SharingMode.MPS, profiled=OLD)
    assert not admitted(candidate, there, (2.0, 2.0)).grants
    assert admitted(candidate, there, (1.0, 1.1)).grants
    assert admitted(candidate, replace(there, profiled=("unknown", 0)), (2.0, 2.0)).grants
    assert admitted(replace(candidate, profiled=None, usual_demand=0.9), replace(there, demand=0.9), (2.0, 2.0)).grants


def test_a_job_starts_beside_the_program_that_it_is_predicted_to_slow_down_least() -> None:
    there = [
        replace(running(0.6, gpu=gpu, duration=3000.0), profiled=(name, 0)) for gpu, name in enumerate(("bad", "good"))
    ]
    predict = predicting({("bad", 0): (1.5, 1.5), ("good", 0): (1.0, 1.4)})
    admission = admit([room(0, 18), room(1)], [PROFILED], 0.0, held=there, predict=predict)
    assert [part.gpu_uuid for grant in admission.grants for part in grant.slices] == ["GPU-1"]


def test_the_forecast_of_a_job_that_is_predicted_to_lose_is_the_end_of_the_other() -> None:
    there = replace(running(0.9), profiled=OLD)
    words = {"held": [there], "predict": predicting({OLD: (2.0, 2.0)})}
    starts = expected_starts([room()], [replace(PROFILED, usual_demand=None)], 70.0, **words)  # type: ignore[arg-type]
    assert starts["new"].at_seconds == 300.0


slight, strong = st.floats(1, INTERFERENCE), st.floats(2, 20)


@given(st.tuples(slight, slight), st.floats(0, 1), st.floats(0, 1) | st.none(), st.floats(1, 1e5), st.floats(1, 1e5))
def test_no_job_waits_for_a_pair_that_is_predicted_not_to_interfere(
    slowdowns: tuple[float, float], usual: float, measured: float | None, duration: float, left: float
) -> None:
    candidate = replace(PROFILED, usual_demand=usual, duration_seconds=duration)
    there = replace(running(measured, 0.9, duration=left), profiled=OLD)
    assert admitted(candidate, there, slowdowns, now=0.0).grants


@given(
    slowdowns=st.tuples(strong, strong),
    measured=st.floats(HALF, 1) | st.none(),
    duration=st.floats(60, 1e4),
    waited=st.floats(0, 1.2),
)
def test_a_pair_that_is_predicted_to_lose_waits_for_no_longer_than_the_job_runs(
    slowdowns: tuple[float, float], measured: float | None, duration: float, waited: float
) -> None:
    since = -waited * duration
    candidate = replace(PROFILED, usual_demand=None, duration_seconds=duration, eligible_at_seconds=since)
    there = replace(running(measured, duration=duration), profiled=OLD)
    is_over = since + min(duration, HOLD_SECONDS) <= 0
    assert bool(admitted(candidate, there, slowdowns, now=0.0).grants) is is_over
