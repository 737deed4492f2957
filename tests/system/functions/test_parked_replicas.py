"""What a replica makes of being parked and woken, whoever says so, and in whatever order."""

import os
import signal
import socket
from pathlib import Path

import pytest
from tests.system.functions.replicas import Replica, answer_of, replica
from tests.waiting import until

from pgpu.functions.ipc.call_messages import Command, Decoder, FrameKind, decode_message, encode_frame

_NUMBER = 9


def asked(started: Replica, what: str) -> str:
    """Ask as a gateway does; return the state that the replica says it is in then."""
    decoder = Decoder()
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(os.fspath(started.directory / "calls.sock"))
        end.sendall(encode_frame(FrameKind.COMMAND, _NUMBER, Command(what)))
        while received := end.recv(1 << 16):
            answers = [each for each in decoder.feed(received) if each.number == _NUMBER]
            if answers:
                return str(decode_message(answers[0]).data["state"])
    raise AssertionError("the replica left")


def until_it_is(started: Replica, state: str) -> None:
    until(lambda: asked(started, "state") == state)


def test_nobody_but_the_engine_gives_back_the_slice_that_it_took() -> None:
    with replica("Echo") as started:
        os.kill(started.process.pid, signal.SIGTSTP)
        until_it_is(started, "parked")
        assert asked(started, "wake") == "parked"
        os.kill(started.process.pid, signal.SIGCONT)
        until_it_is(started, "hot")


def test_nobody_who_calls_loses_the_worker_to_who_parks_it(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with replica("Batched") as started:
        call = started.begin({"x": 1, "hold": str(gate)})
        until((tmp_path / "gate-reached").exists)
        assert asked(started, "park") == "hot"
        gate.touch()
        assert answer_of(call).status == 200
        assert asked(started, "park") == "parked"
        assert asked(started, "wake") in {"starting", "hot"}


@pytest.mark.parametrize("last", [signal.SIGTSTP, signal.SIGCONT])
def test_of_many_signals_the_last_one_counts(last: signal.Signals) -> None:
    with replica("Echo") as started:
        for _ in range(20):
            os.kill(started.process.pid, signal.SIGTSTP)
            os.kill(started.process.pid, signal.SIGCONT)
        os.kill(started.process.pid, last)
        until_it_is(started, "parked" if last is signal.SIGTSTP else "hot")
        os.kill(started.process.pid, signal.SIGCONT)
        assert started.call({"x": 1}).status == 200
