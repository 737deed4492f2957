"""What pgpu costs P1's jobs is computed from runs of the same jobs on both sides."""

import pytest

from pgpu.lab.outcomes import ExperimentTrial, JobOutcome
from pgpu.lab.p1_cost import Comparison, costs, findings, is_free_of_failures, table

GIB = 1 << 30


def trial(
    count: int, whole_seconds: float, *, is_with_pgpu: bool, start_up_seconds: float = 0.5, failed: int = 0
) -> ExperimentTrial:
    executed = 100.0 + start_up_seconds
    result = {
        "executed_at_seconds": executed,
        "began_at_seconds": executed,
        "seconds": whole_seconds - start_up_seconds,
    }
    jobs = tuple(
        JobOutcome("job", 100.0, 100.0 + whole_seconds, int(number < failed), result, "") for number in range(count)
    )
    return ExperimentTrial(is_with_pgpu, 1, jobs, 24 * GIB, ())


def comparison(count: int, ours: float, bare: float, filled: float | None = None) -> Comparison:
    return Comparison(
        trial(count, ours, is_with_pgpu=True, start_up_seconds=1.25),
        trial(count, bare, is_with_pgpu=False),
        None if filled is None else trial(count, filled, is_with_pgpu=True),
    )


def test_a_number_of_jobs_is_compared_if_it_ran_on_both_sides_and_none_failed() -> None:
    bare, ours = trial(4, 8.0, is_with_pgpu=False), trial(4, 9.0, is_with_pgpu=True)

    assert is_free_of_failures(4, [bare, ours])
    assert not is_free_of_failures(4, [ours])
    assert not is_free_of_failures(4, [bare, ours, trial(4, 8.0, is_with_pgpu=False, failed=1)])
    assert is_free_of_failures(4, [bare, ours, trial(24, 8.0, is_with_pgpu=False, failed=6)])


def test_a_cost_has_the_means_of_the_repetitions_and_their_ratio() -> None:
    (cost,) = costs([comparison(4, 9.0, 8.0), comparison(4, 11.0, 8.0)])

    assert (cost.jobs, cost.sliced_seconds, cost.bare_seconds, cost.ratio) == (4, 10.0, 8.0, 1.25)
    assert (cost.sliced_start_up_seconds, cost.bare_start_up_seconds) == (1.25, 0.5)
    assert (cost.waves, cost.filled_seconds, cost.waves_ratio) == (1, None, None)


def test_waves_are_compared_with_a_filled_gpu_in_the_same_repetitions() -> None:
    """A repetition that needed one wave has no filled run, so its whole time is not part of the ratio."""
    (cost,) = costs([comparison(20, 16.0, 10.0, filled=20.0), comparison(20, 99.0, 10.0)])

    assert cost.waves_ratio == 0.8


@pytest.mark.parametrize("side", ["sliced", "bare", "filled"])
def test_a_number_of_jobs_has_no_cost_if_a_job_failed_in_its_comparison(side: str) -> None:
    good = {
        "sliced": trial(4, 9.0, is_with_pgpu=True),
        "bare": trial(4, 8.0, is_with_pgpu=False),
        "filled": trial(4, 9.0, is_with_pgpu=True),
    }
    bad = {**good, side: trial(4, 9.0, is_with_pgpu=side != "bare", failed=1)}

    assert [cost.jobs for cost in costs([Comparison(**good), comparison(2, 9.0, 8.0)])] == [2, 4]
    assert [cost.jobs for cost in costs([Comparison(**bad), comparison(2, 9.0, 8.0)])] == [2]


def test_the_table_has_a_row_for_each_number_of_jobs_the_fewest_first() -> None:
    rows = table(costs([comparison(20, 16.0, 10.0, filled=20.0), comparison(2, 9.0, 8.0)])).objects()

    assert [list(row.values()) for row in rows] == [
        [2, 8.0, 0.5, 9.0, 1.25, 1.12, 1, None, None],
        [20, 10.0, 0.5, 16.0, 1.25, 1.6, 1, 20.0, 0.8],
    ]


def test_the_findings_give_the_cost_and_the_effect_of_waves() -> None:
    found = costs([comparison(20, 16.0, 10.0, filled=20.0), comparison(2, 9.0, 8.0)])

    cost, waves = findings(found)
    assert cost == (
        "where nothing fails without pgpu (2 to 20 jobs, 2 cases), the whole time with pgpu is 1.12 to 1.60 times that without "
        "(median 1.36); starts take 0.75 s longer"
    )
    assert waves == (
        "20 jobs need several waves with pgpu: even waves take 0.80 times as long as a filled GPU, and 1.60 times as long as "
        "all jobs at once without pgpu; where one wave is enough (1 of 2 cases), even waves neither cost nor save time"
    )


def test_waves_cost_nothing_where_all_jobs_start_at_once() -> None:
    assert list(findings(costs([comparison(2, 9.0, 8.0)])))[1] == (
        "all of them start in one wave: even waves neither cost nor save time there"
    )
    assert not list(findings([]))
