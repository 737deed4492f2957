"""What the ledger remembers of ended runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ledger_entries import waiting

from pgpu.engine.admission.queue_plan import SlowdownCurves
from pgpu.engine.history.run_history import RunHistory
from pgpu.ledger import Entry, Ledger
from pgpu.model import Gpu, Request, Run, SharingWish
from pgpu.scheduling import Headroom
from pgpu.structs import replace

CALL = "train.py@0a1b2c3d --epochs 5"
MINE = (CALL, 1000)
GPU = Gpu("GPU-0", "RTX 3090", 0, 24, "615.42.01", is_simulated=False)
RUN = Run(CALL, "RTX 3090", "a" * 12, 1000, 2_000, 1_000, 100, 0, 12.5, 1_000.0, 0)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    found = Ledger(tmp_path / "ledger.db")
    yield found
    found.close()


def remember(ledger: Ledger, *runs: Run) -> None:
    with ledger.decision() as decision:
        for run in runs:
            decision.history.add(run)


def test_a_run_comes_back_as_it_was_written_to_another_process(ledger: Ledger) -> None:
    remember(ledger, RUN, replace(RUN, exit_code=None))
    with Ledger(ledger.path).view() as view:
        assert view.history.runs(None, 10) == [RUN, replace(RUN, exit_code=None)]


def test_demands_are_of_runs_that_ended_well_and_were_measured(ledger: Ledger) -> None:
    remember(ledger, RUN, replace(RUN, demand=0.5), replace(RUN, demand=0.9, exit_code=1), replace(RUN, demand=0.25))
    with ledger.view() as view:
        assert view.history.runs(None, 10)[1].demand == 0.5
        assert view.history.demands([MINE, ("unknown", 1000)], ["RTX 3090"], 10) == {MINE: [0.25, 0.5]}
        learning = RunHistory(None, Headroom())
        learning.durations(view, {MINE}, (GPU,))
        assert learning.demands == {MINE: 0.375}


def test_waiting_jobs_whose_slices_cannot_grow_get_estimates_of_their_own(ledger: Ledger) -> None:
    chosen = Request(5, is_estimated=True, basis="unknown")
    requests = [chosen, replace(chosen, sharing=SharingWish.MPS), replace(chosen, oversubscribes=True)]
    with ledger.decision() as decision:
        for number, request in enumerate(requests):
            job = replace(waiting(f"{number:012x}").job, request=request, signature=CALL, owner_uid=1000)
            decision.add(Entry(job), ())
    with ledger.decision() as decision:
        calls = decision.estimated_calls(None, "train.py@0a1b2c3d", 1000, 10)
        assert calls == [(CALL, 1, False), (CALL, 1, True)]
        decision.put_estimates(None, {(CALL, 1000, 1, False): (6, "history"), (CALL, 1000, 1, True): (7, "history")})
        assert [each.request.memory_bytes for each in decision.waiting(None)] == [6, 7, 7]


def test_a_family_is_new_until_six_runs_of_it_have_ended(ledger: Ledger) -> None:
    family, learning = ("train.py@0a1b2c3d --epochs #", 1000), RunHistory(None, Headroom())

    def most() -> object:
        with ledger.view() as view:
            return learning.most_of_families(view, {family}, (GPU,))

    first = most()
    assert first == {family: 4}
    remember(ledger, replace(RUN, owner_uid=1001), replace(RUN, exit_code=1), replace(RUN, gpu_name="H100"))
    assert most() is first, "rounds recognise what has not changed by identity"
    remember(ledger, RUN, replace(RUN, signature="train.py@0a1b2c3d --epochs 7"))
    assert most() == {family: 20}
    remember(ledger, *[RUN] * 4)
    assert most() == {}


def test_every_call_of_one_program_is_found_and_no_other_program_s(ledger: Ledger) -> None:
    other_call = replace(RUN, signature="train.py@0a1b2c3d")
    remember(ledger, RUN, other_call, replace(RUN, signature="train.py@0a1b2c3dx --epochs 5"))
    with ledger.view() as view:
        assert view.history.of_program("train.py@0a1b2c3d", "RTX 3090", 1000) == [RUN, other_call]
        assert view.history.of_program("train.py@0a1b2c3d", "H100", 1000) == []


def test_one_user_s_runs_tell_another_nothing(ledger: Ledger) -> None:
    remember(ledger, RUN, replace(RUN, owner_uid=1001))
    with ledger.view() as view:
        assert view.history.of_program("train.py@0a1b2c3d", "RTX 3090", 1001) == [replace(RUN, owner_uid=1001)]
        assert view.history.runs(1000, 10) == [RUN]


def test_durations_are_of_runs_that_ended_well_newest_first(ledger: Ledger) -> None:
    remember(ledger, RUN, replace(RUN, duration_seconds=20.0), replace(RUN, duration_seconds=1.0, exit_code=1))
    with ledger.view() as view:
        assert view.history.durations([MINE, ("unknown", 1000)], ["RTX 3090"], 10) == {MINE: [20.0, 12.5]}


def test_neither_another_user_s_runs_nor_another_gpu_s_tell_how_long_a_call_lasts_or_what_company_costs(
    ledger: Ledger,
) -> None:
    remember(ledger, RUN, replace(RUN, owner_uid=1001, duration_seconds=1.0))
    remember(ledger, replace(RUN, gpu_name="simulated RTX 3090", duration_seconds=2.0))
    with ledger.view() as view:
        assert view.history.durations([MINE], ["RTX 3090"], 10) == {MINE: [12.5]}
        assert view.history.durations([MINE], ["RTX 3090", "simulated RTX 3090"], 10) == {MINE: [2.0, 12.5]}
        assert view.history.colocated_runs(MINE, ["RTX 3090"], 10) == [(12.5, 1.0)]
        assert view.history.peaks_of_call(MINE, "simulated RTX 3090") == [1_000]


def test_the_oldest_runs_are_forgotten(ledger: Ledger) -> None:
    runs = [replace(RUN, ended_at_seconds=float(number)) for number in range(5)]
    remember(ledger, *runs)
    with ledger.decision() as decision:
        decision.history.keep_newest(2)
    with ledger.view() as view:
        assert view.history.runs(None, 10) == runs[3:]


def test_who_asks_again_hears_only_of_calls_that_ran_since(ledger: Ledger) -> None:
    remember(ledger, RUN)
    with ledger.view() as view:
        number, changed = view.history.since(0)
        assert changed == {MINE}
        assert view.history.since(number) == (number, set())
    remember(ledger, replace(RUN, signature="other@1"))
    with ledger.view() as view:
        assert view.history.since(number) == (number + 1, {("other@1", 1000)})


def test_how_long_a_call_lasts_is_learnt_from_each_run_that_ends(ledger: Ledger) -> None:
    learning = RunHistory(None, Headroom())
    with ledger.view() as view:
        assert learning.durations(view, [MINE], [GPU]) == {}
    for seconds, median in ((10.0, 10.0), (30.0, 20.0), (14.0, 14.0)):
        remember(ledger, replace(RUN, duration_seconds=seconds))
        with ledger.view() as view:
            assert learning.durations(view, [MINE, ("never@0", 1000), (CALL, 1001)], [GPU]) == {MINE: median}
            assert learning.durations(view, [MINE], [replace(GPU, is_simulated=True)]) == {}
            assert learning.durations(view, [MINE], []) == {}, "as of the GPUs that were named last"
    with ledger.view() as view:
        assert learning.durations(view, [MINE], [GPU]) == {MINE: 14.0}
        assert learning.durations(view, [MINE], []) == {MINE: 14.0}, "while the GPUs cannot be read"


def test_what_company_costs_one_user_s_program_on_one_kind_of_gpu_is_no_other_s(ledger: Ledger) -> None:
    with ledger.decision() as decision:
        for number, (uid, model) in enumerate([(1000, "simulated"), (1001, "simulated"), (1000, None)]):
            job = replace(waiting(f"{number:012x}").job, owner_uid=uid, gpu_model=model, signature=CALL)
            decision.add(Entry(job), ())
    remember(ledger, replace(RUN, gpu_name="simulated RTX 3090"))
    stretches = SlowdownCurves()
    with ledger.view() as view:
        assert list(stretches.of(view, "simulated", [replace(GPU, is_simulated=True)])) == [f"{0:012x}"]
        assert not stretches.of(view, None, [GPU])
