"""No real CUDA program in the queue fails for lack of memory, where the same ones without pgpu do."""

from dataclasses import replace

import pytest
from benchmarks.no_failures_real import MIXED, RealJob, real_jobs, with_pgpu, without_pgpu

GPUS = 2


def crowd() -> list[RealJob]:
    """Make two dozen jobs that come within three seconds, half of them training that takes all it sees."""
    jobs = real_jobs(MIXED, 1, GPUS, within_seconds=20.0)[:24]
    return [replace(job, at_seconds=job.at_seconds / 8) for job in jobs]


@pytest.mark.soak
def test_two_dozen_programs_that_come_at_random_all_find_their_memory() -> None:
    seen = with_pgpu(crowd(), GPUS)
    assert (seen.jobs, seen.failed, seen.saw_out_of_memory) == (24, 0, 0), seen.complaints
    assert seen.samples_past_headroom == 0
    assert 0 < seen.most_used_share < 1


@pytest.mark.soak
def test_without_pgpu_some_of_the_same_programs_fail() -> None:
    seen = without_pgpu(crowd(), GPUS)
    assert seen.failed > 0
    assert seen.saw_out_of_memory >= seen.failed
