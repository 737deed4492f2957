"""What a round predicts from the profiles in the ledger."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.test_advising import job

from pgpu.advising import needs_estimation
from pgpu.advising.advice import predict
from pgpu.advising.constants_fit import key_of, text_of
from pgpu.advising.contention import Constants
from pgpu.engine.admission.auto_sharing import ProfileReadings
from pgpu.engine.admission.slowdown_predictor import MOST_UNDER_MPS, SlowdownPredictor
from pgpu.engine.history.run_history import history_name
from pgpu.ledger import Ledger
from pgpu.model import Antagonist, Contest, Gpu, Job, JobSpec, JobState, Profile, Request, SharingMode
from pgpu.structs import replace
from pgpu.units import GIB

GPU = Gpu("GPU-0", "fake", 0, 24 * GIB, "1.0", is_simulated=True)
A, B, C, D = ((name, 7) for name in "abcd")
SLICED, MPS = SharingMode.TIME_SLICE, SharingMode.MPS


def known(name: str, busy: float = 1.0) -> Profile:
    """Counters of a job, all that `advising` asks for."""
    return replace(job(busy, name=name, sm=0.9, dram=0.8), gpu_name=history_name(GPU), owner_uid=7)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "ledger.db")
    yield made
    made.close()


def add(ledger: Ledger, *profiles: Profile) -> None:
    with ledger.decision() as decision:
        for profile in profiles:
            decision.profiles.add(profile, "a" * 12)


def read(ledger: Ledger, predictor: SlowdownPredictor, *calls: tuple[str, int]) -> SlowdownPredictor:
    """Read as two rounds do: what the first one lacks is computed after it."""
    for _ in range(2):
        with ledger.view() as view:
            predictor.read(view, calls, [GPU])
        predictor.readings.keep(ledger.facts)
    return predictor


def test_slowdowns_are_those_of_advice_in_the_order_of_the_programs(ledger: Ledger) -> None:
    light, heavy = known("a", 0.2), known("b")
    add(ledger, light, heavy)
    predictor = read(ledger, SlowdownPredictor(ProfileReadings()), A, B, C)
    assert predictor.calls == {A, B}
    for mode in (SLICED, MPS):
        found = [predictor.slowdowns(GPU.uuid, mode, calls) for calls in ((A, B), (B, A))]
        assert found == [predict(order, mode, Constants()) for order in ((light, heavy), (heavy, light))]
    for calls in ((A, C), (A, B, C)):
        assert predictor.slowdowns(GPU.uuid, SLICED, calls) is None
    assert predictor.slowdowns("GPU-9", SLICED, (A, B)) is None


def test_a_newer_profile_and_newer_constants_change_what_is_predicted(ledger: Ledger) -> None:
    add(ledger, known("a"))
    predictor = read(ledger, SlowdownPredictor(ProfileReadings()), A)
    calls = predictor.calls
    before = predictor.slowdowns(GPU.uuid, SLICED, (A, A))
    assert read(ledger, predictor, A, B).calls is calls, "candidates of the last round are made anew"
    ledger.facts.put(key_of(history_name(GPU), GPU.driver_version), text_of(Constants(switch_overhead=0.5)))
    calibrated = read(ledger, predictor, A).slowdowns(GPU.uuid, SLICED, (A, A))
    add(ledger, known("a", 0.1), known("b"))
    lighter = read(ledger, predictor, A, B).slowdowns(GPU.uuid, SLICED, (A, A))
    assert before
    assert calibrated
    assert lighter
    assert lighter[0] < before[0] < calibrated[0]
    assert predictor.calls == {A, B}


def test_nothing_is_computed_in_a_round_whose_profiles_were_not_read_yet(ledger: Ledger) -> None:
    add(ledger, replace(known("a"), contests=(Contest(Antagonist.DRAM, 0, 0.1, 1.4, 1.2, 0.5),)))
    needs_estimation._cache.clear()
    predictor = SlowdownPredictor(ProfileReadings())
    with ledger.view() as view:
        predictor.read(view, [A], [GPU])
    assert predictor.slowdowns(GPU.uuid, SLICED, (A, A)) is None
    predictor.readings.keep(ledger.facts)
    assert predictor.slowdowns(GPU.uuid, SLICED, (A, A))


def test_under_mps_small_sets_of_well_known_programs_are_predicted(ledger: Ledger) -> None:
    add(ledger, *map(known, "abc"), replace(known("d"), demands=()))
    predictor = read(ledger, SlowdownPredictor(ProfileReadings()), A, B, C, D)
    assert predictor.slowdowns(GPU.uuid, MPS, (A, B, C)[:MOST_UNDER_MPS])
    assert predictor.slowdowns(GPU.uuid, MPS, (A, B, C, A)) is None
    assert predictor.slowdowns(GPU.uuid, MPS, (A, D)) is None, "the memory bandwidth of one is unknown"
    assert predictor.slowdowns(GPU.uuid, SLICED, (A, B, C, D))


@pytest.mark.parametrize(
    ("request_", "is_predicted"),
    [
        (Request(GIB), True),
        (Request(GIB, gpu_count=2), False),
        (Request(GIB, compute_share=0.5), False),
        (Request(GIB, oversubscribes=True), False),
    ],
)
def test_predictions_are_for_jobs_with_all_of_one_gpu(ledger: Ledger, request_: Request, *, is_predicted: bool) -> None:
    add(ledger, known("a"))
    predictor = read(ledger, SlowdownPredictor(ProfileReadings()), A)
    waiting = Job("a" * 12, JobSpec(("true",), "process"), request_, JobState.WAITING, 1.0, signature="a", owner_uid=7)
    assert predictor.call_of(waiting) == (A if is_predicted else None)
    assert predictor.call_of(replace(waiting, owner_uid=8)) is None


def test_a_ledger_without_profiles_is_asked_once_a_round(ledger: Ledger) -> None:
    asked: list[str] = []
    predictor = SlowdownPredictor(ProfileReadings())
    with ledger.view() as view:
        connection: sqlite3.Connection = view.profiles._connection
        connection.set_trace_callback(asked.append)
        predictor.read(view, [A, B, C], [GPU])
        connection.set_trace_callback(None)
    assert len(asked) == 1
