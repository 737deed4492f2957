"""A client that looks often asks a server seldom."""

import threading

import pytest
from tests.waiting import until

from pgpu.client.http_client import GrantWatch
from pgpu.errors import ServerUnavailableError
from pgpu.model import Job, JobSpec, JobState, Request
from pgpu.structs import replace

WAITING = Job("0123456789ab", JobSpec(("true",), "process"), Request(1), JobState.WAITING, 1.0, reason="no room")


class Answers:
    """A server that is asked about one job, and answers when told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, bool]] = []
        self.granted = threading.Event()

    def __call__(self, timeout_seconds: float, wants_reason: bool) -> Job:
        self.asked.append((timeout_seconds, wants_reason))
        if timeout_seconds > 1 and not self.granted.wait(60):
            return WAITING
        return replace(WAITING, state=JobState.RUNNING) if self.granted.is_set() else WAITING


def test_many_looks_are_one_question_and_the_answer_to_it_ends_the_wait() -> None:
    server = Answers()
    watch = GrantWatch(server)
    until(lambda: watch.still_waits(0.0) == "no room")
    until(lambda: len(server.asked) == 3)
    for _ in range(100):
        assert watch.still_waits(0.0) == "no room"
    assert [wants_reason for _, wants_reason in server.asked] == [False, True, True]
    server.granted.set()
    assert watch.still_waits(60) is None


def test_a_server_that_cannot_be_reached_is_told_to_whoever_looks() -> None:
    def ask(_timeout_seconds: float, _wants_reason: bool) -> Job:
        raise ServerUnavailableError("gone")

    with pytest.raises(ServerUnavailableError, match="gone"):
        GrantWatch(ask).still_waits(60)
