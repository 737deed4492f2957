"""Who may start after whom, and who never will."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.engine.admission.dependencies import DependencyVerdicts
from pgpu.engine.admission.dependencies import judge_peers as stand
from pgpu.ledger import JobPeer
from pgpu.model import JobState, Place


def standing(jobs: Sequence[JobPeer], ended: Mapping[str, JobPeer]) -> DependencyVerdicts:
    """As a round sees them: those that wait, those they may go after, and how many of the array are granted."""
    waiting = [each for each in jobs if each.state is JobState.WAITING]
    granted = sum(each.state in {JobState.STARTING, JobState.RUNNING} for each in jobs if each.place.array_id)
    return stand(waiting, {**ended, **{each.job_id: each for each in jobs}}, {"array": granted})


def job(job_id: str, *after: str, state: JobState = JobState.WAITING, exit_code: int | None = None) -> JobPeer:
    return JobPeer(job_id, None, state, exit_code, None, Place(after))


def ended(job_id: str, exit_code: int | None = 0, state: JobState = JobState.EXITED) -> dict[str, JobPeer]:
    return {job_id: job(job_id, state=state, exit_code=exit_code)}


def test_a_job_without_others_may_start() -> None:
    found = standing([job("a")], {})
    assert (found.hindered, found.doomed) == ({}, {})


@pytest.mark.parametrize("state", [JobState.WAITING, JobState.STARTING, JobState.RUNNING])
def test_a_job_is_held_while_one_that_it_goes_after_has_not_ended(state: JobState) -> None:
    found = standing([job("a", state=state), job("b", "a")], {})
    assert found.hindered == {"b": "waits for the end of job a"}


def test_predecessors_that_many_jobs_share_are_judged_once() -> None:
    class Counted(dict[str, JobPeer]):
        reads = 0

        def __getitem__(self, job_id: str) -> JobPeer:
            self.reads += 1
            return super().__getitem__(job_id)

    names = [f"a{number}" for number in range(50)]
    awaited = Counted({name: job(name) for name in names})
    found = stand([*awaited.values(), *(job(f"b{number}", *names) for number in range(100))], awaited, {})
    assert found.hindered == {f"b{number}": "waits for the end of job a0 and of 49 more" for number in range(100)}
    assert awaited.reads <= 2 * len(names)


def test_how_many_more_it_waits_for_is_told() -> None:
    found = standing([job("a"), job("b"), job("c", "a", "b")], {})
    assert found.hindered["c"] == "waits for the end of job a and of 1 more"


def test_a_job_may_start_once_all_ended_well() -> None:
    found = standing([job("b", "a")], ended("a"))
    assert (found.hindered, found.doomed) == ({}, {})


def test_one_that_ended_while_its_memory_is_not_free_yet_has_ended() -> None:
    found = standing([job("a", state=JobState.EXITED, exit_code=0), job("b", "a")], {})
    assert found.hindered == {}


@pytest.mark.parametrize(
    ("exit_code", "state", "says"),
    [
        (3, JobState.EXITED, "job a ended with exit code 3"),
        (None, JobState.FAILED, "job a failed"),
        (None, JobState.CANCELLED, "job a was cancelled"),
    ],
)
def test_whoever_goes_after_a_failure_never_starts(exit_code: int | None, state: JobState, says: str) -> None:
    found = standing([job("b", "a"), job("c", "b")], ended("a", exit_code, state))
    assert says in found.doomed["b"]
    assert "job b, was cancelled" in found.doomed["c"]


def test_one_failure_dooms_at_once_though_others_still_run() -> None:
    found = standing([job("x", state=JobState.RUNNING), job("b", "x", "a")], ended("a", 1))
    assert set(found.doomed) == {"b"}


def test_whoever_goes_after_a_job_that_is_forgotten_never_starts() -> None:
    assert "no longer in the ledger" in standing([job("b", "gone")], {}).doomed["b"]


def element(job_id: str, state: JobState = JobState.WAITING, most: int | None = 2) -> JobPeer:
    return JobPeer(job_id, None, state, None, None, Place((), "array", 0, most))


def test_of_an_array_so_many_may_start_as_were_asked_for() -> None:
    found = standing([element("a", JobState.RUNNING), element("b"), element("c"), element("d")], {})
    assert set(found.hindered) == {"c", "d"}
    assert "of which 2 may run at a time" in found.hindered["c"]


def test_an_array_without_a_limit_holds_nobody() -> None:
    assert not standing([element(name, most=None) for name in "abcdef"], {}).hindered


@st.composite
def crowds(draw: st.DrawFn) -> Sequence[JobPeer]:
    """Live jobs that go after older ones, of which some have ended while their memory is not free yet."""
    states = draw(st.lists(st.sampled_from(list(JobState)), min_size=1, max_size=12))
    jobs = []
    for place, state in enumerate(states):
        after = draw(st.sets(st.integers(0, place - 1), max_size=3)) if place else set()
        code = draw(st.sampled_from([0, 1])) if state is JobState.EXITED else None
        jobs.append(job(str(place), *map(str, sorted(after)), state=state, exit_code=code))
    return jobs


@given(crowds())
def test_nobody_starts_before_all_that_it_goes_after_ended_well(jobs: Sequence[JobPeer]) -> None:
    found = standing(jobs, {})
    known = {each.job_id: each for each in jobs}
    for each in jobs:
        if each.state is not JobState.WAITING:
            assert each.job_id not in {*found.hindered, *found.doomed}
            continue
        may_start = each.job_id not in {*found.hindered, *found.doomed}
        assert may_start == all(known[name].exit_code == 0 for name in each.place.after)
        is_lost = any(
            name in found.doomed or (known[name].state.is_final and known[name].exit_code != 0)
            for name in each.place.after
        )
        assert (each.job_id in found.doomed) == is_lost
