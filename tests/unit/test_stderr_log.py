"""What supervisors complain of: said once, and never too much."""

import pytest

from pgpu.host.stderr_log import Complaints


def test_what_is_wrong_all_the_time_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    complaints = Complaints()
    for number in range(5):
        complaints.say(f"the board is cut short after {number} bytes")
        complaints.say("the ledger is full")
    assert capfd.readouterr().err == "the board is cut short after 0 bytes\nthe ledger is full\n"


def test_ever_new_complaints_come_to_an_end(capfd: pytest.CaptureFixture[str]) -> None:
    complaints = Complaints()
    for length in range(1, 1000):
        complaints.say("x" * length)
    assert capfd.readouterr().err.count("\n") == 100
