"""The times of trials count from the submission, with pgpu and without: late starts and waits are part of the whole time."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pgpu.app.settings import Settings
from pgpu.lab import testbed
from pgpu.lab.outcomes import ExperimentTrial
from pgpu.lab.trials import SlicedJob, run_bare, run_sliced
from pgpu.structs import replace
from pgpu.units import GIB

LATE_SECONDS = 1.5
WORDS = ("spin", "--kernel-ms", "1", "--launches", "1")


@pytest.fixture
def bed() -> Iterator[testbed.Testbed]:
    settings = replace(Settings(), simulate="RTX 3090")
    with testbed.open_testbed(settings, "process", None, lambda _line: None, headroom=testbed.NO_HEADROOM) as found:
        yield found


def run(bed: testbed.Testbed, words: tuple[str, ...], way: str) -> ExperimentTrial:
    if way == "with pgpu":
        return run_sliced(bed, [SlicedJob("job", words, GIB)])
    return run_bare(bed, [("job", words)], has_start_line=way == "without pgpu, at a start line")


@pytest.mark.parametrize("way", ["with pgpu", "without pgpu", "without pgpu, at a start line"])
def test_a_job_that_starts_late_is_counted_in_the_whole_time(bed: testbed.Testbed, tmp_path: Path, way: str) -> None:
    interpreter = tmp_path / "late-python"
    interpreter.write_text(f'#!/bin/sh\nsleep {LATE_SECONDS}\nexec {bed.python} "$@"\n')
    interpreter.chmod(0o755)

    found = run(replace(bed, python=str(interpreter)), WORDS, way)

    assert found.failed == 0
    assert found.start_up_seconds is not None
    assert found.start_up_seconds >= LATE_SECONDS
    assert found.whole_seconds >= found.start_up_seconds + found.jobs[0].seconds
    assert found.jobs[0].seconds < found.whole_seconds - LATE_SECONDS, "the program's own time has no start-up"


def test_a_wait_for_memory_is_part_of_the_whole_time_and_not_of_the_start_up(bed: testbed.Testbed) -> None:
    words = ("spin", "--kernel-ms", "100", "--launches", "20")
    memory_bytes = bed.device_memory_bytes * 2 // 3

    found = run_sliced(bed, [SlicedJob(f"job-{number}", words, memory_bytes) for number in (1, 2)])

    seconds = [job.seconds for job in found.jobs]
    assert (found.failed, found.waves, found.most_side_by_side) == (0, 2, 1)
    assert found.whole_seconds >= sum(seconds)
    assert found.start_up_seconds is not None
    assert found.start_up_seconds <= found.whole_seconds - sum(seconds), (
        "neither program ran while the other started up"
    )


def test_jobs_with_pgpu_begin_together_at_a_start_line_and_waiting_ones_later(bed: testbed.Testbed) -> None:
    words = ("spin", "--kernel-ms", "100", "--launches", "5")
    # Different sizes are no batch: two fit at once, and the third waits.
    sizes = [10 * GIB, 10 * GIB + 1, 10 * GIB + 2]

    found = run_sliced(
        bed, [SlicedJob(f"job-{number}", words, size) for number, size in enumerate(sizes)], has_start_line=True
    )

    assert (found.failed, found.waves) == (0, 2)
    executed = [job.executed_at_seconds for job in found.jobs[:2]]
    assert all(at is not None and at <= job.began_at_seconds for at in executed for job in found.jobs[:2])
    assert found.jobs[2].began_at_seconds >= min(job.program_ended_at_seconds for job in found.jobs[:2])


def test_a_start_line_does_not_wait_for_a_job_that_ended_before_it_was_ready(bed: testbed.Testbed) -> None:
    jobs = [SlicedJob("bad", ("spin", "--launches", "0"), GIB), SlicedJob("good", WORDS, GIB)]

    found = run_sliced(bed, jobs, has_start_line=True)

    assert [job.exit_code for job in found.jobs] == [2, 0]
