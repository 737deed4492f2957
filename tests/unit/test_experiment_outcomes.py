"""Outcomes of experiments are what the jobs report, and times count from the submission on both sides."""

import pytest

from pgpu.lab import p1
from pgpu.lab.outcomes import (
    ExperimentTrial,
    JobOutcome,
    Moment,
    last_line,
    last_result,
    mean_seconds,
    spread,
    whole_time,
)
from pgpu.structs import replace

GIB = 1 << 30


def job(name: str = "job", *, seconds: float = 8.0, refusals: int = 0, exit_code: int | None = 0) -> JobOutcome:
    result = {
        "seconds": seconds,
        "refusals": refusals,
        "began_at_seconds": 100.0,
        "held_bytes": GIB,
        "memory_timeline": [[0.0, GIB // 4], [1.0, GIB]],
    }
    return JobOutcome(name, 100.0, 100.0 + seconds, exit_code, result, "")


def trial(
    *jobs: JobOutcome, is_with_pgpu: bool = False, samples: tuple[tuple[float, int], ...] = ()
) -> ExperimentTrial:
    return ExperimentTrial(is_with_pgpu, 1, jobs, 24 * GIB, samples)


def test_a_job_without_an_exit_code_counts_as_failed() -> None:
    assert job(exit_code=None).is_failed


def test_a_job_that_died_of_a_refusal_saw_one_even_if_it_could_not_count_it() -> None:
    died = replace(job(exit_code=1), result=None, complaint="cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY")

    assert died.saw_refusal


def test_a_job_that_failed_of_something_else_saw_no_refusal() -> None:
    assert not replace(job(exit_code=125), result=None, complaint="no such image").saw_refusal


def test_a_job_without_a_result_took_the_time_until_its_end() -> None:
    assert replace(job(seconds=3.0), result=None).seconds == 3.0


def test_run_times_are_of_completed_jobs_only() -> None:
    found = trial(job(seconds=8.0), job(seconds=99.0, exit_code=1), job(seconds=10.0))

    assert found.completed_seconds == [8.0, 10.0]
    assert mean_seconds([found]) == 9.0
    assert found.failed == 1


def test_a_trial_in_which_nothing_completed_has_no_mean() -> None:
    assert mean_seconds([trial(job(exit_code=1))]) is None


def test_jobs_side_by_side_are_counted_where_they_overlap() -> None:
    later = replace(job(), result={**(job().result or {}), "began_at_seconds": 108.5})

    assert trial(job(), job(), later).most_side_by_side == 2


def timed(
    executed: float, ended: float, *, granted: float | None = None, epoch_offset: float = 0.0, noticed: float = 0.5
) -> JobOutcome:
    """Return a job submitted at 100; its end is noticed a while after its program's own end."""
    result = {
        "executed_at_seconds": executed + epoch_offset,
        "began_at_seconds": executed + 1 + epoch_offset,
        "seconds": ended - executed - 1,
    }
    return JobOutcome(
        "job", 100.0, ended + noticed, 0, result, "", granted_at_seconds=granted, epoch_offset_seconds=epoch_offset
    )


def test_the_whole_time_is_from_the_submission_to_the_last_end_however_late_a_job_starts() -> None:
    late = timed(150.0, 158.0)

    assert trial(timed(101.0, 109.0), late).whole_seconds == 58.5
    assert trial(timed(101.0, 109.0), late, is_with_pgpu=True).whole_seconds == 58.5


def test_the_start_up_of_a_trial_is_its_longest() -> None:
    assert trial(timed(101.0, 109.0), timed(103.0, 109.0), timed(102.0, 110.0)).start_up_seconds == 3.0


def test_a_job_that_waited_for_memory_of_another_starts_up_from_its_grant() -> None:
    first, second = timed(102.0, 110.0, granted=100.3), timed(111.0, 119.0, granted=110.2)

    assert trial(first, second, is_with_pgpu=True).start_up_seconds == 2.0
    slow = timed(116.0, 119.0, granted=110.2)
    assert trial(first, slow, is_with_pgpu=True).start_up_seconds == pytest.approx(5.8)


def test_a_job_granted_before_the_first_end_starts_up_from_the_submission() -> None:
    """A first end that is noticed late does not matter: the program's own end counts."""
    held = timed(106.0, 112.0, granted=104.0)

    assert trial(timed(101.0, 109.0, granted=100.3), held, is_with_pgpu=True).start_up_seconds == 6.0
    granted_at_once = timed(111.0, 119.0, granted=110.1)
    found = trial(timed(101.0, 110.0, granted=100.3, noticed=3.0), granted_at_once, is_with_pgpu=True)
    assert found.start_up_seconds == 1.0


def test_times_of_programs_are_converted_from_the_epoch() -> None:
    found = timed(101.0, 109.0, epoch_offset=1_700_000_000.0)

    assert (found.executed_at_seconds, found.began_at_seconds, found.program_ended_at_seconds) == (101.0, 102.0, 109.0)


def test_a_program_of_an_older_image_executed_when_it_began() -> None:
    assert job().executed_at_seconds == 100.0


def test_a_trial_whose_programs_reported_nothing_has_no_start_up() -> None:
    died = replace(job(exit_code=1), result=None)

    assert trial(died).start_up_seconds is None
    assert whole_time(trial(died)) == "all done in 8.0 s"
    assert trial(died, timed(102.0, 104.0)).start_up_seconds == 2.0


def test_a_wave_ends_with_the_first_end_of_its_jobs() -> None:
    first = [timed(101.0, 109.0 + number, granted=100.3) for number in range(3)]
    topped_up = timed(105.0, 114.0, granted=104.0)
    second = [timed(111.0, 118.0 + number, granted=109.1 + number) for number in range(3)]
    third = timed(120.0, 125.0, granted=118.2)

    assert trial(*first, topped_up, is_with_pgpu=True).waves == 1
    assert trial(third, *second, topped_up, *first, is_with_pgpu=True).waves == 3
    assert trial(timed(101.0, 103.0), timed(104.0, 109.0)).waves == 1


def test_seconds_until_a_moment_of_the_epoch_are_of_the_monotonic_clock() -> None:
    assert Moment(50.0, 1000.0).seconds_until(1053.0) == 3.0


def test_the_peak_is_the_most_that_any_sample_saw() -> None:
    assert trial(job(), samples=((0.0, 5), (1.0, 7), (2.0, 6))).device_peak_bytes == 7


def test_counts_are_written_with_their_spread() -> None:
    assert spread([6]) == "6"
    assert spread([4, 9, 6]) == "4 to 9 (median 6)"
    assert spread([]) == "–"


def test_the_result_is_the_last_line_that_is_an_object() -> None:
    assert last_result('noise\n{"seconds": 1}\n') == {"seconds": 1}
    assert last_result('{"seconds": 1}\n3\n') is None
    assert last_result("noise\n") is None


def test_the_complaint_is_the_last_line_with_words() -> None:
    assert last_line("first\nlast\n\n") == "last"
    assert last_line("") == ""


def test_the_papers_table_has_a_row_for_2_to_25_jobs() -> None:
    assert [row.jobs for row in p1.P1_TABLE] == list(range(2, 26))
    assert p1.p1_row(1) is None
    assert p1.p1_row(25) == p1.P1Row(25, 10.75, 13.924, None, 15)
