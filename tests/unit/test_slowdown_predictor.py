"""What a round predicts from the profiles in the ledger."""

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.machine import make_machine
from tests.unit.test_advising import job

from pgpu.advising import needs_estimation
from pgpu.advising.advice import predict
from pgpu.advising.constants_fit import key_of, text_of
from pgpu.advising.contention import Constants
from pgpu.engine.admission.auto_sharing import ProfileReadings
from pgpu.engine.admission.slowdown_predictor import MOST_TOGETHER, SlowdownPredictor
from pgpu.engine.history.run_history import history_name
from pgpu.ledger import Entry, Ledger
from pgpu.model import (
    Antagonist,
    Contest,
    Gpu,
    Job,
    JobSpec,
    JobState,
    Lease,
    Profile,
    Request,
    Run,
    SharingMode,
    SharingWish,
    Slice,
)
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
    found = [predictor.slowdowns(GPU.uuid, calls) for calls in ((A, B), (B, A))]
    assert found == [predict(order, MPS, Constants()) for order in ((light, heavy), (heavy, light))]
    for calls in ((A, C), (A, B, C)):
        assert predictor.slowdowns(GPU.uuid, calls) is None
    assert predictor.slowdowns("GPU-9", (A, B)) is None


def test_a_newer_profile_and_newer_constants_change_what_is_predicted(ledger: Ledger) -> None:
    add(ledger, known("a"))
    predictor = read(ledger, SlowdownPredictor(ProfileReadings()), A)
    calls = predictor.calls
    before = predictor.slowdowns(GPU.uuid, (A, A))
    assert read(ledger, predictor, A, B).calls is calls, "candidates of the last round are made anew"
    ledger.facts.put(key_of(history_name(GPU), GPU.driver_version), text_of(Constants(crowd_overhead=0.5)))
    calibrated = read(ledger, predictor, A).slowdowns(GPU.uuid, (A, A))
    add(ledger, known("a", 0.1), known("b"))
    lighter = read(ledger, predictor, A, B).slowdowns(GPU.uuid, (A, A))
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
    assert predictor.slowdowns(GPU.uuid, (A, A)) is None
    predictor.readings.keep(ledger.facts)
    assert predictor.slowdowns(GPU.uuid, (A, A))


def test_a_reading_that_newer_ones_displaced_is_read_again(ledger: Ledger) -> None:
    add(ledger, known("a"))
    predictor = read(ledger, SlowdownPredictor(ProfileReadings()), A)
    needs_estimation._cache.clear()
    assert predictor.slowdowns(GPU.uuid, (A, A)) is None
    assert read(ledger, predictor, A).slowdowns(GPU.uuid, (A, A))


def test_small_sets_of_well_known_programs_are_predicted(ledger: Ledger) -> None:
    add(ledger, *map(known, "abc"), replace(known("d"), demands=()))
    predictor = read(ledger, SlowdownPredictor(ProfileReadings()), A, B, C, D)
    assert predictor.slowdowns(GPU.uuid, (A, B, C)[:MOST_TOGETHER])
    assert predictor.slowdowns(GPU.uuid, (A, B, C, A)) is None
    assert predictor.slowdowns(GPU.uuid, (A, D)) is None, "the memory bandwidth of one is unknown"


@pytest.mark.parametrize(
    ("request_", "mode", "is_predicted"),
    [
        (Request(GIB), MPS, True),
        (Request(GIB), SLICED, False),
        (Request(GIB, gpu_count=2), MPS, False),
        (Request(GIB, compute_share=0.5), MPS, False),
        (Request(GIB, oversubscribes=True), MPS, False),
    ],
)
def test_predictions_are_for_jobs_under_mps_with_all_of_one_gpu(
    ledger: Ledger, request_: Request, mode: SharingMode, *, is_predicted: bool
) -> None:
    add(ledger, known("a"))
    predictor = read(ledger, SlowdownPredictor(ProfileReadings()), A)
    waiting = Job("a" * 12, JobSpec(("true",), "process"), request_, JobState.WAITING, 1.0, signature="a", owner_uid=7)
    assert predictor.call_of(waiting, mode) == (A if is_predicted else None)
    assert predictor.call_of(replace(waiting, owner_uid=8), mode) is None


def test_a_ledger_without_profiles_is_asked_once_a_round(ledger: Ledger) -> None:
    asked: list[str] = []
    predictor = SlowdownPredictor(ProfileReadings())
    with ledger.view() as view:
        connection: sqlite3.Connection = view.profiles._connection
        connection.set_trace_callback(asked.append)
        predictor.read(view, [A, B, C], [GPU])
        connection.set_trace_callback(None)
    assert len(asked) == 1


def test_a_round_holds_back_a_job_under_mps_beside_one_that_it_is_predicted_to_slow_down(tmp_path: Path) -> None:
    engine = make_machine(tmp_path, [10 * GIB], has_mps=True)
    [gpu] = engine.gpus.gpus()
    light = replace(job(0.03, name="b", sm=0.1, dram=0.1), owner_uid=7)
    asked, now_seconds = Request(2 * GIB, sharing=SharingWish.MPS), time.time()
    made = Job("0" * 12, JobSpec(("true",), "process"), asked, JobState.WAITING, now_seconds, owner_uid=7)
    made = replace(made, gpu_model=engine.settings.gpu_model)
    lease = Lease("1" * 12, (Slice(gpu.uuid, 2 * GIB),), now_seconds, sharing=MPS)
    running = replace(made, id="1" * 12, signature="a", state=JobState.RUNNING, lease=lease)
    jobs = [running, *(replace(made, id=name * 12, signature=name) for name in "ab")]
    with engine.ledger.decision() as decision:
        for profile in (known("a"), light):
            decision.profiles.add(replace(profile, gpu_name=history_name(gpu)), "a" * 12)
            run = Run(profile.signature, history_name(gpu), "a" * 12, 7, GIB, 1, 1, 0, 600.0, 1.0, 0)
            for _ in range(3):
                decision.history.add(run)
        for each in jobs:
            decision.put(replace(decision.add(Entry(each), ()), job=each))
    for _ in range(2):
        with engine.ledger.view() as view:
            situation = engine.rounds.situation(view, engine.snapshot())
        engine.rounds.predictor.readings.keep(engine.ledger.facts)
    admission = situation.admission(now_seconds)
    assert [grant.job_id for grant in admission.grants] == ["b" * 12]
    assert "by their profiles, one of the jobs would take 1.8 times as long there" in admission.waits[0].reason
