"""When a job waits for a GPU to change its mode: rent or buy."""

import math

from hypothesis import given
from hypothesis import strategies as st

from pgpu.engine.admission.auto_sharing import empty_in_seconds, is_worth_waiting
from pgpu.ledger import Entry
from pgpu.model import Job, JobSpec, JobState, Request

SECONDS = st.floats(min_value=0, max_value=1e6)
GAINS = st.floats(min_value=1.01, max_value=50)


@given(SECONDS, SECONDS, SECONDS, GAINS)
def test_nobody_waits_longer_than_it_runs_or_than_its_program_gains(
    wait: float, own: float, sliced: float, gain: float
) -> None:
    if is_worth_waiting(wait, own, sliced, gain):
        assert wait <= own
        assert wait <= (own + sliced) * (1 - 1 / gain)


def test_nobody_waits_for_a_job_of_which_nobody_knows_when_it_ends() -> None:
    assert not is_worth_waiting(math.inf, 1e9, 1e9, 50)


def test_a_job_alone_waits_for_what_it_gains_itself() -> None:
    assert is_worth_waiting(4, 10, 0, 2)
    assert not is_worth_waiting(6, 10, 0, 2)


def test_what_a_job_has_waited_already_counts_where_others_put_its_turn_off_again_and_again() -> None:
    waits = [is_worth_waiting(1, 10, 0, 2, waited_seconds=begun / 2) for begun in range(20)]
    assert waits == [True] * 9 + [False] * 11  # Five seconds are what it gains; a short one begins every half second.


@given(GAINS, st.integers(min_value=2, max_value=20))
def test_a_stream_of_jobs_ends_in_the_better_mode_however_they_follow_each_other(gain: float, at_once: int) -> None:
    """Each lasts a second and finds one there that just started; whoever starts in time slices adds to what was lost."""
    sliced, wait = 0.0, 1 - 1 / at_once
    for _ in range(math.ceil(wait / (1 - 1 / gain)) + 1):
        if is_worth_waiting(wait, 1.0, sliced, gain):
            break
        sliced += 1.0
    else:
        raise AssertionError("the stream goes on in time slices")
    assert sliced * (1 - 1 / gain) <= wait


def running(signature: str) -> Entry:
    spec = JobSpec(("true",), "process")
    return Entry(Job("a" * 12, spec, Request(5), JobState.RUNNING, 1.0, 100.0, signature=signature))


def test_a_gpu_is_empty_when_the_last_one_ends_and_an_overdue_one_may_take_as_long_again() -> None:
    there = [running("short"), running("long")]
    lasting = {("short", 0): 10.0, ("long", 0): 60.0}
    assert empty_in_seconds(there, lasting, 120.0) == 40.0
    assert empty_in_seconds(there[:1], lasting, 140.0) == 30.0
    assert empty_in_seconds(there, {("short", 0): 10.0}, 120.0) == math.inf
    assert empty_in_seconds([], lasting, 120.0) == 0.0
