"""The parts of a function's front that need no socket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pgpu.functions.api import Declaration
from pgpu.functions.http.request_handler import plain_headers, request_id, timeout_seconds
from pgpu.functions.http.response_writer import header_lines
from pgpu.functions.ipc.call_messages import Chunk, Decoder, FrameKind, Reply, encode_frame
from pgpu.functions.protocols import Refusal
from pgpu.functions.replica.worker_queue import WorkerQueue, WorkerSlot
from pgpu.functions.requests.request_queue import PendingRequest, PrefetchWindow, ReplicaMetrics


@given(st.integers(1, 1000), st.lists(st.floats(0, 1000), max_size=30))
def test_a_worker_has_as_many_calls_as_it_runs_and_never_many_more(slots: int, exec_seconds: list[float]) -> None:
    ahead = PrefetchWindow(slots, 0.002, is_batched=False)
    for seconds in exec_seconds:
        ahead.learn(seconds)
    assert slots <= ahead.window <= slots + 128


def test_only_short_calls_lie_ahead() -> None:
    ahead = PrefetchWindow(1, 0.002, is_batched=False)
    for _ in range(50):
        ahead.learn(0.000_02)
    assert ahead.window > 30
    for _ in range(50):
        ahead.learn(0.5)
    assert ahead.window == 1


def test_the_next_batch_lies_ready_while_one_runs() -> None:
    ahead = PrefetchWindow(16, 0.002, is_batched=True)
    ahead.learn(1.0)
    assert ahead.window == 32


@given(st.text(max_size=200))
def test_an_id_is_the_callers_only_if_it_is_harmless(given_id: str) -> None:
    found = request_id({"x-request-id": given_id})
    assert found.isascii()
    assert found.isprintable()
    assert 0 < len(found) <= 128
    assert " " not in found


@given(st.text(max_size=20))
def test_a_timeout_is_never_more_than_the_function_allows(text: str) -> None:
    found = timeout_seconds({"request-timeout": text}, 60.0)
    assert found is None or 0 < found <= 60.0


@pytest.mark.parametrize(("text", "seconds"), [("1.5", 1.5), ("600", 60.0), ("inf", 60.0), ("nan", None), ("0", None)])
def test_timeouts_are_seconds(text: str, seconds: float | None) -> None:
    assert timeout_seconds({"request-timeout": text}, 60.0) == seconds


def test_headers_of_one_name_are_joined() -> None:
    raw = [(b"accept", b"text/plain"), (b"x", b"\xe4"), (b"accept", b"*/*")]
    assert plain_headers(raw) == {"accept": "text/plain, */*", "x": "ä"}


@given(st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=3))
def test_a_reply_never_says_more_headers_than_it_has(headers: dict[str, str]) -> None:
    ticket = PendingRequest("id", "POST", "/", "", {}, b"", None, 0.0, 1.0, 1.0, None)
    try:
        lines = header_lines(Reply(200, headers), ticket, "")
    except ValueError:
        return
    assert lines.count("\n") == lines.count("\r\n") == len(headers) + 1


class Taking:
    """A worker, or a caller, that takes whatever it gets."""

    last_begun = 0

    def send(self, written: bytes, file: int | None = None) -> None: ...

    def flush(self) -> None: ...

    def take(self, _number: int) -> bool:
        return True

    def reply(self, reply: Reply, file: int | None) -> None: ...

    def chunk(self, chunk: object, file: int | None) -> None: ...


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_call_that_waited_may_run_as_long_as_any_other(concurrency: int) -> None:
    desk = WorkerQueue(Declaration(concurrency=concurrency), ReplicaMetrics())
    desk.seat(WorkerSlot(Taking(), Taking()), 0.0)  # type: ignore[arg-type] # all that it asks of them
    tickets = [PendingRequest("id", "POST", "/", "", {}, b"", None, 0.0, 1060.0, 60.0, Taking()) for _ in range(2)]
    for each in tickets:
        desk.submit(each)
    before = desk.latest_begin_seconds(tickets[1])
    desk.on_frames(Decoder().feed(encode_frame(FrameKind.REPLY, 1, (200, {}))))
    after = desk.latest_begin_seconds(tickets[1])
    assert after > before if concurrency == 1 else after == before == 1060.0


def test_each_request_counts_once_however_it_ends() -> None:
    metrics, mark = ReplicaMetrics(), Taking()
    desk = WorkerQueue(Declaration(concurrency=8), metrics)
    mark.last_begun = 5
    desk.seat(WorkerSlot(Taking(), mark), 0.0)  # type: ignore[arg-type] # all that it asks of them
    left, late, whole, left_later, lost = tickets = [
        PendingRequest("id", "POST", "/", "", {}, b"", None, 0.0, 1060.0, 60.0, Taking()) for _ in range(5)
    ]
    for each in tickets:
        desk.submit(each)
    heads = b"".join(encode_frame(FrameKind.REPLY, each.number, Reply(200, {}, is_last=False)) for each in tickets)
    desk.on_frames(Decoder().feed(heads))
    desk.abandon(left)
    desk.expire(late, Refusal(504, "deadline", "late"))
    desk.abandon(late)
    ends = b"".join(
        encode_frame(FrameKind.CHUNK, each.number, Chunk(b"", is_last=True)) for each in (left, late, whole)
    )
    desk.on_frames(Decoder().feed(ends))
    desk.abandon(left_later)
    desk.unseat()
    assert lost.sink is None
    assert metrics.answers == {(499, "cancelled"): 2, (504, "deadline"): 1, (200, ""): 1, (502, "worker_died"): 1}
    assert not desk.size


def test_a_request_that_its_gateway_counts_as_running_is_not_given_back() -> None:
    desk, mark = WorkerQueue(Declaration(), ReplicaMetrics()), Taking()
    desk.seat(WorkerSlot(Taking(), mark), 0.0)  # type: ignore[arg-type] # all that it asks of them
    left, first, second = tickets = [
        PendingRequest("id", "POST", "/", "", {}, b"", None, 0.0, 1060.0, 60.0, Taking()) for _ in range(3)
    ]
    for each in tickets:
        desk.submit(each)
    desk.abandon(left)
    desk.give_back([first, second])
    assert (first.sink is None, second.sink is None) == (False, True)


def test_the_installed_uvicorn_has_the_place_where_the_short_way_begins() -> None:
    assert callable(getattr(HttpToolsProtocol, "_start_asgi_task", None)), "calls take the ordinary way: twice the CPU"
