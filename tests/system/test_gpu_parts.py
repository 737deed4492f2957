"""The parts of `make test-gpu` do not stop each other, and none outlives its time."""

import sys
from pathlib import Path

import pytest
from tests.waiting import until
from tools.test_gpu import KILLED, Part, last_json, parts, run, run_all

GOOD = Part("good", (sys.executable, "-c", "print('noise'); print('{\"found\": 1}')"), 60)
BAD = Part("bad", (sys.executable, "-c", "import sys; sys.exit('it broke')"), 60)
HANGS = Part("hangs", ("sh", "-c", "sleep 600 & echo $!; wait"), 0.5)


def test_a_part_that_fails_does_not_stop_the_next() -> None:
    bad, good = run_all([BAD, GOOD], 60)

    assert (bad.exit_code, bad.said) == (1, ["it broke"])
    assert (good.exit_code, good.found, good.said) == (0, {"found": 1}, [])


def test_a_part_that_hangs_is_ended_with_all_that_it_started() -> None:
    outcome = run(HANGS, HANGS.limit_seconds)

    assert outcome.exit_code == KILLED
    child = Path("/proc") / outcome.said[0] / "stat"
    until(lambda: not child.exists() or child.read_text().rsplit(")", 1)[1].split()[0] == "Z")


def test_what_no_time_is_left_for_is_not_started() -> None:
    (outcome,) = run_all([GOOD], 0)

    assert (outcome.exit_code, outcome.found, outcome.said) == (KILLED, None, ["no time was left for it"])


@pytest.mark.parametrize(("text", "found"), [("", None), ("no json", None), ('x\n{"a": 1}\n', {"a": 1})])
def test_the_last_json_of_an_output_is_what_was_found(text: str, found: object) -> None:
    assert last_json(text) == found


def test_parts_have_names_of_their_own() -> None:
    names = [part.name for part in parts(Path(), Path())]

    assert len(set(names)) == len(names) > 5
