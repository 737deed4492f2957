"""What companions cost a program, learnt from its runs."""

import itertools
import random

import pytest
from benchmarks.makespan import p1
from hypothesis import given
from hypothesis import strategies as st

from pgpu.model import Gpu, Request, Slice
from pgpu.scheduling import Candidate, GpuRoom, Held
from pgpu.scheduling.makespan import plan_waiting
from pgpu.scheduling.run_times import LEAST_RUNS, RUNS_OF_A_NUMBER, SlowdownCurve, fit_slowdown_curve, mean_slowdown
from pgpu.units import GIB, MIB

PRIOR = 0.5
runs = st.lists(st.tuples(st.floats(0.1, 1e5), st.floats(0.5, 60)), min_size=1, max_size=40)


@given(runs)
def test_companions_never_make_a_job_faster_and_more_of_them_never_cost_less(seen: list[tuple[float, float]]) -> None:
    known = fit_slowdown_curve(seen, PRIOR)
    assert known is not None
    costs = [known.slowdown(count) for count in range(1, 80)]
    assert costs[0] >= 1
    assert all(first <= second * (1 + 1e-9) for first, second in itertools.pairwise(costs))
    assert known.alone_seconds <= max(seconds for seconds, _ in seen) * (1 + 1e-9)


def test_nothing_is_known_without_runs_and_no_cost_from_few() -> None:
    assert fit_slowdown_curve([], PRIOR) is None
    few = fit_slowdown_curve([(10.0, 1.0), (100.0, 9.0), (100.0, 9.0), (100.0, 9.0)][: LEAST_RUNS - 1], PRIOR)
    assert few is not None
    assert few.slowdown(9) == 1
    assert mean_slowdown([(few, 1.0), (None, 5.0)]) is None


def test_between_two_numbers_a_gpu_has_room_and_is_then_shared_and_beyond_them_nobody_knows() -> None:
    known = SlowdownCurve(8.0, ((5, 1.0), (19, 1.1), (20, 2.0)), 0.1)
    assert [known.slowdown(count) for count in (1, 5, 9, 18, 19, 20, 40)] == pytest.approx(
        [1, 1, 1, 1.1 * 18 / 19, 1.1, 2, 2]
    )


def test_a_dear_number_is_not_forgotten_because_it_was_avoided_since() -> None:
    cheap = [(9.0, 12.0)] * 10 * RUNS_OF_A_NUMBER
    known = fit_slowdown_curve([*cheap, *[(18.0, 20.0)] * 5], PRIOR)
    assert known is not None
    assert known.slowdown(20) == pytest.approx(2)


def test_the_more_alike_runs_are_the_less_doubtful_is_the_next() -> None:
    dice = random.Random(1)
    doubts = []
    for count, sigma in ((1, 0.0), (3, 0.0), (15, 0.0), (15, 0.7)):
        known = fit_slowdown_curve([(10 * dice.lognormvariate(0, sigma), 1.0) for _ in range(count)], PRIOR)
        assert known is not None
        doubts.append(known.doubt)
    assert doubts[0] == PRIOR
    assert PRIOR / 2 > doubts[1] > doubts[2]
    assert doubts[3] == pytest.approx(0.7, rel=0.4)


def test_jobs_slow_each_other_down_as_they_do_on_average_by_their_length() -> None:
    known = SlowdownCurve(8.0, ((1, 1.0), (2, 3.0)), 0.1)
    together = mean_slowdown([(known, 30.0), (None, 10.0)])
    assert together is not None
    assert together(2) == pytest.approx(1 + 0.75 * 2)


def test_p1_s_25_jobs_end_in_time_in_their_second_batch_with_what_the_first_taught() -> None:
    first, second = p1.learned_ends(2)
    assert first > 1.3 * p1.BEST_SECONDS
    assert second <= 1.05 * p1.BEST_SECONDS


def test_a_plan_takes_a_job_s_length_from_its_own_program_and_what_ran_slowly_for_less_work() -> None:
    gpu = Gpu("GPU-0", "Test", 0, 24 * GIB, "1.0", is_simulated=False)
    held = [
        Held(f"old{number}", 0, (Slice("GPU-0", 8 * GIB),), 1000.0 - 15, duration_seconds=30) for number in range(2)
    ]
    queue = [Candidate("new", Request(16 * GIB), duration_seconds=30)]
    known = dict.fromkeys(("old0", "old1", "new"), SlowdownCurve(10.0, ((1, 1.0), (2, 3.0)), 1e-9))
    plan = plan_waiting([GpuRoom(gpu, 0, 0, 16 * GIB)], queue, 1000.0, held=held, curves=known, effort=0)
    assert plan.end_seconds == pytest.approx(15 + 10, abs=0.1)


def test_a_call_s_history_tells_how_many_fit_well() -> None:
    seen = [(p1.LONGEST_SECONDS[20], 20.0)] * 20 + [(p1.LONGEST_SECONDS[5], 5.0)] * 5
    known = fit_slowdown_curve(seen, PRIOR)
    assert known is not None
    gpu = Gpu("GPU-0", "Test", 0, 24_265 * MIB, "1.0", is_simulated=False)
    queue = [Candidate(f"job{number}", Request(1205 * MIB), duration_seconds=16) for number in range(25)]
    curves = {each.job_id: known for each in queue}
    plan = plan_waiting([GpuRoom(gpu, 0, 0, 0)], queue, 0.0, curves=curves, doubt=PRIOR, effort=1000)
    assert 11 <= plan.most_at_once <= 14
