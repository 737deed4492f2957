"""Jobs under MPS stay together only while they really are faster so."""

import itertools

import pytest

from pgpu.advising.verification import DEFAULT_RULES, Trial, Verdict, Way, advance, begin

PAIR = frozenset({"a", "b"})


def played(together: dict[str, float], turns: dict[str, float], seconds: int = 60) -> list[Trial]:
    """A trial of jobs that launch so many kernels a second each way, looked at each second."""
    trial = begin(PAIR, 0.0, None, known_age_seconds=0.0)
    launches = dict.fromkeys(PAIR, 0.0)
    seen = [trial]
    for second in range(1, seconds):
        rates = together if trial.way is Way.TOGETHER else turns
        launches = {job: count + rates[job] for job, count in launches.items()}
        trial = advance(trial, {job: int(count) for job, count in launches.items()}, float(second))
        seen.append(trial)
    return seen


def test_jobs_that_are_faster_together_stay_so() -> None:
    last = played({"a": 100, "b": 100}, {"a": 60, "b": 60})[-1]
    assert (last.way, last.is_over) == (Way.TOGETHER, True)
    assert last.gain == pytest.approx(100 / 60)


def test_jobs_that_hurt_each_other_take_turns_from_then_on() -> None:
    last = played({"a": 20, "b": 30}, {"a": 60, "b": 60})[-1]
    assert (last.way, last.is_over) == (Way.TURNS, True)


def test_four_percent_is_not_enough_to_stay_together() -> None:
    assert played({"a": 104, "b": 104}, {"a": 100, "b": 100})[-1].way is Way.TURNS


def test_each_way_is_looked_at_for_twenty_seconds_once() -> None:
    ways = [trial.way for trial in played({"a": 100, "b": 100}, {"a": 60, "b": 60})]
    changes = [second for second in range(1, len(ways)) if ways[second] is not ways[second - 1]]
    assert changes == [21, 42]


def test_a_job_that_hardly_launches_tells_nothing_and_is_left_alone() -> None:
    trials = played({"a": 100, "b": 0.1}, {"a": 60, "b": 0.1}, seconds=1000)
    assert {trial.way for trial in trials} == {Way.TOGETHER}
    assert trials[-1].gain is None


def test_a_job_that_loads_its_data_first_is_looked_at_once_it_works() -> None:
    trial = begin(PAIR, 0.0, None, known_age_seconds=0.0)
    for second in range(1, 120):
        trial = advance(trial, {"a": second * 100, "b": max(0, second - 25) * 100}, float(second))
    assert trial.gain is not None


def test_turns_that_told_nothing_are_tried_again_each_time_twice_as_late() -> None:
    ways = [trial.way for trial in played({"a": 100, "b": 100}, {"a": 60, "b": 0.1}, seconds=4000)]
    begun = [
        second for second in range(1, len(ways)) if ways[second] is Way.TURNS and ways[second - 1] is not Way.TURNS
    ]
    waits = [after - before for before, after in itertools.pairwise(begun)]
    assert waits[:3] == [pytest.approx(42 + pause, abs=2) for pause in (20, 40, 80)]
    assert waits[-1] == pytest.approx(42 + DEFAULT_RULES.memory_seconds, abs=2)


def test_what_was_decided_is_looked_at_anew_after_ten_minutes() -> None:
    trials = played({"a": 20, "b": 30}, {"a": 60, "b": 60}, seconds=700)
    assert [trials[second].way for second in (43, 640, 650, 670, 690)] == [
        Way.TURNS,
        Way.TURNS,
        Way.TOGETHER,
        Way.TURNS,
        Way.TURNS,
    ]
    assert [trials[second].is_over for second in (43, 640, 650, 670, 690)] == [True, True, False, False, True]


def test_a_known_verdict_is_believed_for_the_rest_of_its_ten_minutes() -> None:
    trial = begin(PAIR, 5.0, Verdict(Way.TURNS, 0.7, at_seconds=0.0), known_age_seconds=500.0)
    assert advance(trial, {"a": 0, "b": 0}, 104.0).is_over
    assert not advance(trial, {"a": 0, "b": 0}, 105.0).is_over


def test_a_job_whose_progress_cannot_be_read_yet_is_not_taken_for_a_fast_one() -> None:
    trial = begin(PAIR, 0.0, None, known_age_seconds=0.0)
    for second in range(1, 60):
        told = {"a": second * 100} if second < 10 else {"a": second * 100, "b": 1_000_000 + second}
        trial = advance(trial, told, float(second))
        assert trial.marks == {} or trial.marks["b"] > 1_000_000


def test_what_was_found_of_the_same_programs_is_not_sought_again_for_ten_minutes() -> None:
    verdict = Verdict(Way.TURNS, 0.7, at_seconds=0.0)
    assert begin(PAIR, 5.0, verdict, known_age_seconds=599.0).way is Way.TURNS
    again = begin(PAIR, 5.0, verdict, known_age_seconds=DEFAULT_RULES.memory_seconds)
    assert (again.way, again.is_over) == (Way.TOGETHER, False)


def test_a_job_alone_is_not_tried() -> None:
    assert begin(frozenset({"a"}), 0.0, None, known_age_seconds=0.0).is_over
