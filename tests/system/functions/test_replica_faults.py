"""What becomes of requests when something goes wrong; each gets an answer, and the next is served."""

import contextlib
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.system.functions.replicas import Replica, answer_of, replica, until_broken
from tests.waiting import is_over, until


@pytest.fixture(scope="module")
def kept() -> Iterator[Replica]:
    """One replica for every test that leaves it in order."""
    directory = Path(tempfile.mkdtemp(prefix="pgpu-notes-"))
    with replica("Fickle", arguments={"notes": str(directory / "notes")}, queue_limit=4) as started:
        started.notes = directory / "notes"
        yield started
    shutil.rmtree(directory)


@pytest.fixture
def fickle(kept: Replica) -> Replica:
    kept.notes.write_text("")
    return kept


@pytest.fixture
def notes(fickle: Replica) -> Path:
    return fickle.notes


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Replica]:
    """One that its test ends."""
    with replica("Fickle", arguments={"notes": str(tmp_path / "notes")}) as started:
        started.notes = tmp_path / "notes"
        yield started


def begun(notes: Path, what: str, times: int = 1) -> bool:
    return notes.exists() and notes.read_text().splitlines().count(f"begin {what}") == times


def test_a_worker_killed_in_mid_call_costs_that_call_and_no_other(fickle: Replica, notes: Path) -> None:
    restarts = fickle.health["restarts"]
    for times in range(1, 4):
        hanging = fickle.begin({"do": "hang"})
        until(lambda times=times: begun(notes, "hang", times))  # type: ignore[misc]
        waiting = fickle.begin({"do": "wait"})
        until(lambda: fickle.metric("pgpu_function_in_flight") == 2)
        os.kill(fickle.worker_pid, signal.SIGKILL)
        died = answer_of(hanging)
        assert (died.status, died.value["code"]) == (502, "worker_died")
        assert answer_of(waiting).status == 200
        assert fickle.health["restarts"] == restarts + times


def test_a_call_of_an_idempotent_function_survives_its_worker(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with replica("Fickle", arguments={"notes": str(notes)}, idempotent=True) as started:
        dying = started.begin({"do": "die"})
        assert answer_of(dying).status == 502
        assert begun(notes, "die", 3)
        assert started.call({"do": "live"}).status == 200


@pytest.mark.parametrize(
    ("do", "error"), [("raise", "KeyError"), ("exit", "SystemExit"), ("interrupt", "KeyboardInterrupt")]
)
def test_what_a_handler_raises_is_told_to_the_log_alone(fickle: Replica, do: str, error: str) -> None:
    pid = fickle.worker_pid
    answer = fickle.call({"do": do}, x_request_id="the-failing-one")
    assert answer.status == 500
    assert answer.value == {"error": error, "code": "handler_error", "request_id": "the-failing-one"}
    log = fickle.log.read_text()
    assert "the-failing-one" in log
    assert "Traceback" in log
    assert fickle.worker_pid == pid


@pytest.mark.parametrize("name", ["leave", "leave_soon", "leave_together"])
def test_an_argument_whose_making_ends_the_interpreter_is_an_error_of_its_call(name: str) -> None:
    with replica(name) as started:
        pid = started.worker_pid
        answer = started.call({"it": {"why": "somebody's secret"}})
        assert (answer.status, answer.value["error"], answer.value["code"]) == (500, "SystemExit", "handler_error")
        assert "somebody's secret" in started.log.read_text()
        assert started.worker_pid == pid


def test_a_stream_that_is_interrupted_in_its_middle_is_an_error_of_its_call() -> None:
    with replica("leave_in_the_middle") as started:
        pid = started.worker_pid
        connection = started.begin({"count": 2}, accept="application/x-ndjson")
        assert b"KeyboardInterrupt" in until_broken(connection.getresponse())
        assert started.worker_pid == pid


def test_a_handler_says_itself_what_is_the_callers_mistake(fickle: Replica) -> None:
    answer = fickle.call({"do": "refuse"})
    assert (answer.status, answer.value["error"], answer.value["code"]) == (404, "not this one", "refused")


def test_health_is_answered_while_the_handler_burns_the_interpreter(fickle: Replica) -> None:
    burning = fickle.begin({"do": "burn", "seconds": 0.5})
    until(lambda: fickle.metric("pgpu_function_in_flight") == 1)
    assert fickle.health["state"] == "hot"
    assert fickle.metric("pgpu_function_in_flight") == 1
    assert answer_of(burning).status == 200


def test_a_late_call_is_answered_and_its_worker_replaced_if_it_goes_on(notes: Path) -> None:
    with replica("Fickle", arguments={"notes": str(notes)}, timeout=0.5) as started:
        pid = started.worker_pid
        late = started.call({"do": "hang"})
        assert (late.status, late.value["code"]) == (504, "deadline")
        until(lambda: started.health["restarts"] == 1)
        until(lambda: started.health["state"] == "hot")
        assert started.call({"do": "next"}).status == 200
        assert started.worker_pid != pid


def test_a_caller_in_a_hurry_ends_nobodys_worker(fickle: Replica) -> None:
    pid = fickle.worker_pid
    for _ in range(3):
        assert fickle.call({"do": "burn", "seconds": 0.3}, request_timeout="0.01").status == 504
    assert fickle.call({"do": "next"}).status == 200
    assert fickle.worker_pid == pid


def test_a_call_that_is_late_in_the_queue_is_never_begun(fickle: Replica, notes: Path) -> None:
    busy = fickle.begin({"do": "until cancelled"})
    until(lambda: begun(notes, "until cancelled"))
    late = [fickle.begin({"do": "late"}, request_timeout="0.05") for _ in range(3)]
    assert [answer_of(each).status for each in late] == [504] * 3
    busy.close_now()
    assert fickle.call({"do": "next"}).status == 200
    assert begun(notes, "late", 0)


def test_a_client_that_leaves_cancels_its_call(fickle: Replica, notes: Path) -> None:
    leaving = fickle.begin({"do": "until cancelled"})
    until(lambda: begun(notes, "until cancelled"))
    queued = [fickle.begin({"do": "queued"}) for _ in range(3)]
    until(lambda: fickle.metric("pgpu_function_in_flight") == 4)
    for each in queued:
        each.close_now()
    leaving.close_now()
    until(lambda: "cancelled" in notes.read_text().splitlines())
    assert fickle.call({"do": "next"}).status == 200
    assert begun(notes, "queued", 0)


def test_more_than_the_queue_holds_is_refused_with_a_time_to_come_back(fickle: Replica, notes: Path) -> None:
    busy = fickle.begin({"do": "until cancelled"})
    until(lambda: begun(notes, "until cancelled"))
    queued = [fickle.begin({"do": "queued"}) for _ in range(4)]
    until(lambda: fickle.metric("pgpu_function_waiting") == 4)
    refused = fickle.call({"do": "refused"})
    assert (refused.status, refused.value["code"]) == (429, "queue_full")
    assert int(refused.headers["retry-after"]) >= 1
    busy.close_now()
    assert [answer_of(each).status for each in queued] == [200] * 4


def test_a_client_that_sends_slowly_holds_nobody_up_and_no_place() -> None:
    with replica("Fickle", queue_limit=0, timeout=0.5) as started:
        slow = [started.begin_head(content_length="100") for _ in range(3)]
        assert started.call({"do": "next"}).status == 200
        large = started.begin_head(content_length="1000000")
        late = answer_of(large)
        assert (late.status, late.value["code"]) == (408, "body_timeout")
        assert [answer_of(each).status for each in slow] == [408] * 3


def test_leaving_finishes_what_is_there_and_refuses_the_rest(mortal: Replica) -> None:
    busy = mortal.begin({"do": "burn", "seconds": 0.5})
    until(lambda: begun(mortal.notes, "burn"))
    kept = mortal.kept_connection()
    mortal.process.send_signal(signal.SIGTERM)
    until(lambda: kept.ask("/healthz").value["state"] == "draining")
    assert kept.ask("/readyz").status == 503
    refused = mortal.call({"do": "refused"})
    assert (refused.status, refused.value["code"]) == (503, "draining")
    assert answer_of(busy).status == 200
    assert mortal.process.wait() == 0
    assert mortal.notes.read_text().splitlines()[-1] == "close"


def test_a_worker_that_dies_while_its_front_leaves_brings_no_new_calls(mortal: Replica) -> None:
    busy = mortal.begin({"do": "hang"})
    until(lambda: begun(mortal.notes, "hang"))
    queued = mortal.begin({"do": "until cancelled"})
    until(lambda: mortal.metric("pgpu_function_in_flight") == 2)
    kept = mortal.kept_connection()
    mortal.process.send_signal(signal.SIGTERM)
    until(lambda: kept.ask("/healthz").value["state"] == "draining")
    os.kill(mortal.worker_pid, signal.SIGKILL)
    assert answer_of(busy).status == 502
    until(lambda: begun(mortal.notes, "until cancelled"))
    assert kept.ask("/healthz").value["state"] == "draining"
    assert mortal.call({"do": "refused"}).value["code"] == "draining"
    queued.close_now()
    assert mortal.process.wait() == 0


def test_nothing_outlives_a_front_that_is_killed(mortal: Replica) -> None:
    mortal.begin({"do": "hang"})
    until(lambda: begun(mortal.notes, "hang"))
    left = psutil.Process(mortal.process.pid).children(recursive=True)
    assert len(left) == 2
    mortal.process.kill()
    mortal.process.wait()
    until(lambda: all(is_over(each) for each in left))


def started_by(notes: Path, word: str) -> psutil.Process:
    return psutil.Process(
        int(next(line for line in notes.read_text().splitlines() if line.startswith(word)).split()[1])
    )


@pytest.mark.parametrize("whose_end", ["worker", "zygote", "front", "front at once"])
def test_what_a_handler_started_ends_with_its_worker(mortal: Replica, whose_end: str) -> None:
    assert mortal.call({"do": "start"}).status == 200
    left = started_by(mortal.notes, "started")
    assert not is_over(left)
    if whose_end == "worker":
        os.kill(mortal.worker_pid, signal.SIGKILL)
    elif whose_end == "zygote":
        psutil.Process(mortal.process.pid).children()[0].kill()
    elif whose_end == "front":
        mortal.process.terminate()
    else:
        mortal.process.kill()
    until(lambda: is_over(left))


def test_a_child_that_comes_back_from_a_handler_answers_nobody(fickle: Replica, notes: Path) -> None:
    pid = fickle.worker_pid
    assert fickle.call({"do": "fork"}).status == 200
    until(lambda: is_over(started_by(notes, "forked")))
    assert fickle.call({"do": "next"}).status == 200
    assert fickle.worker_pid == pid


def test_a_zygote_that_is_killed_is_replaced_with_its_worker(fickle: Replica) -> None:
    zygote = psutil.Process(fickle.process.pid).children()[0]
    pid = fickle.worker_pid
    restarts = fickle.health["restarts"]
    zygote.kill()
    until(lambda: fickle.health["restarts"] == restarts + 1)
    assert fickle.call({"do": "next"}).status == 200
    assert fickle.worker_pid != pid
    status = Path(f"/proc/{fickle.worker_pid}/status").read_text("ascii")
    assert "\nSigBlk:\t0000000000000000\n" in status  # what the front holds back for itself, its workers hear


def test_a_head_that_does_not_end_is_refused_and_harms_no_worker(fickle: Replica) -> None:
    pid = fickle.worker_pid
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(fickle.socket))
        with contextlib.suppress(OSError):
            client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 6_000_000 + b"\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 431 ")
    assert fickle.call({"do": "next"}).status == 200
    assert fickle.worker_pid == pid


def test_a_reader_that_takes_nothing_keeps_no_answer_in_memory() -> None:
    with replica("Reverse", timeout=1) as started:
        maps = Path(f"/proc/{started.process.pid}/maps")
        unread = started.begin(b"x" * 5_000_000)
        until(lambda: "pgpu-body" in maps.read_text())
        until(lambda: "pgpu-body" not in maps.read_text())
        assert started.call(b"ab").body == b"ba"
        unread.close()
