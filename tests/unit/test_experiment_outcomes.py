"""Outcomes of experiments are what the jobs say."""

from pgpu.lab import p1
from pgpu.lab.trials import ExperimentTrial, JobOutcome, last_line, last_result, mean_seconds, spread
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
