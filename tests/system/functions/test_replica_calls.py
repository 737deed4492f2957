"""What a replica answers when all goes well."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.system.functions.replicas import Replica, answer_of, replica, until_broken
from tests.waiting import until


@pytest.fixture(scope="module")
def echo() -> Iterator[Replica]:
    with replica("Echo") as started:
        yield started


@pytest.fixture(scope="module")
def stream() -> Iterator[Replica]:
    with replica("Stream") as started:
        yield started


def test_a_call_is_answered_with_its_id_its_times_and_its_trace(echo: Replica) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    answer = echo.call({"x": 7}, x_request_id="mine-1", traceparent=trace)
    assert (answer.status, answer.value["x"]) == (200, 7)
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.headers["traceparent"] == trace
    times = [part.partition(";dur=")[0] for part in answer.headers["server-timing"].split(", ")]
    assert times == ["queue", "cold", "load", "exec"]


def test_many_callers_at_once_each_get_their_own_answer(echo: Replica) -> None:
    with ThreadPoolExecutor(16) as callers:
        answers = list(callers.map(lambda number: echo.call({"x": number}).value["x"], range(200)))
    assert answers == list(range(200))


def test_requests_in_a_pipeline_are_answered_in_their_order(echo: Replica) -> None:
    request = b'POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n{"x":%d}'
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(echo.socket))
        client.sendall(b"".join(request % number for number in range(5)))
        received = b""
        while received.count(b'"x":') < 5:
            received += client.recv(65536)
    assert [int(part[:1]) for part in received.split(b'"x":')[1:]] == list(range(5))


@pytest.mark.parametrize("path", ["/", "/functions/it", "/v2/models/it/infer", "/v2/models/it/versions/1/infer"])
def test_every_path_of_the_function_calls_it(echo: Replica, path: str) -> None:
    tensor = {"inputs": [{"name": "x", "shape": [1], "datatype": "INT64", "data": [5]}]}
    answer = echo.call(tensor if path.endswith("infer") else {"x": 5}, path)
    assert answer.status == 200, answer.body


def test_what_no_worker_is_needed_for_is_refused_by_the_front(echo: Replica) -> None:
    refused = {
        ("GET", "/"): (405, "bad_method"),
        ("POST", "/healthz"): (405, "bad_method"),
        ("POST", "/functions/other"): (404, "not_found"),
        ("GET", "/v2/models/other"): (404, "not_found"),
    }
    for (method, path), expected in refused.items():
        answer = answer_of(echo.begin(None, path, method))
        assert (answer.status, answer.value["code"]) == expected
        assert answer.headers["x-request-id"] == answer.value["request_id"]
    timeout = echo.call({"x": 1}, request_timeout="soon")
    assert (timeout.status, timeout.value["code"]) == (400, "bad_timeout")
    head_alone = echo.begin_head(request_timeout="soon", content_length="2")
    assert echo.health["state"] == "hot", "and meanwhile the front had time to refuse it without its body"
    head_alone.send(b"{}")
    late = answer_of(head_alone)
    assert (late.status, late.value["code"]) == (400, "bad_timeout")


def test_bad_input_is_the_callers_and_says_where(echo: Replica) -> None:
    assert echo.call(b"{", content_type="application/json").value["code"] == "bad_json"
    wrong = echo.call({"x": "seven"})
    assert (wrong.status, wrong.value["code"]) == (422, "bad_input")
    assert "$.x" in wrong.value["error"]


def test_nobody_else_opens_a_replicas_sockets(echo: Replica) -> None:
    for name in ("http.sock", "calls.sock"):
        assert (echo.directory / name).stat().st_mode & 0o077 == 0


def test_a_function_describes_itself(echo: Replica) -> None:
    assert echo.get("/openapi.json").value["openapi"].startswith("3.1")
    assert echo.get("/v2").value["name"] == "pgpu"
    assert echo.get("/v2/models/it").value["name"] == "it"
    assert echo.get("/v2/models/it/ready").status == 200
    health = echo.health
    assert (health["state"], health["reason"], health["restarts"]) == ("hot", None, 0)
    assert echo.metric("pgpu_function_requests_total") > 0


@pytest.mark.parametrize("size", [0, 1, 60_001, 1_200_000, 5_000_000])
def test_a_body_of_any_size_goes_there_and_comes_back(reverse: Replica, size: int) -> None:
    body = bytes(range(251)) * (size // 251) + b"x" * (size % 251)
    answer = reverse.call(body, content_type="application/octet-stream")
    assert answer.status == 200
    assert answer.body == body[::-1]


@pytest.mark.parametrize("size", [9, 70_000, 2_000_000])
def test_a_client_that_would_rather_speak_http_2_is_answered(reverse: Replica, size: int) -> None:
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2_settings": "AAEAAEAA"}
    answer = reverse.call(b"x" * size + b"y", content_type="application/octet-stream", **offer)
    assert (answer.status, answer.body) == (200, b"y" + b"x" * size)


def test_a_body_without_a_length_is_read_to_its_end(reverse: Replica) -> None:
    connection = reverse.begin_chunked([b"abc" * 1000] * 500)
    assert answer_of(connection).body == (b"abc" * 500_000)[::-1]


def test_a_body_that_is_too_large_is_refused_before_it_is_read(reverse: Replica) -> None:
    told = reverse.begin_head(content_length=str(1 << 30))
    assert answer_of(told).status == 413
    untold = answer_of(reverse.begin_chunked([b"x" * 100_000] * 101, must_be_read=False))
    assert (untold.status, untold.value["code"]) == (413, "body_too_large")


@pytest.fixture(scope="module")
def reverse() -> Iterator[Replica]:
    with replica("Reverse", max_body=10_000_000) as started:
        yield started


def test_a_stream_comes_as_events_or_lines_or_one_list(stream: Replica) -> None:
    events = stream.call({"count": 3}, accept="text/event-stream")
    assert events.headers["content-type"] == "text/event-stream"
    assert events.body.startswith(b"data: 0\n\ndata: 1\n\ndata: 2\n\n")
    lines = stream.call({"count": 300}, accept="application/x-ndjson")
    assert [json.loads(line) for line in lines.body.splitlines()] == list(range(300))
    assert stream.call({"count": 3}, accept="application/json").value == [0, 1, 2]


def test_a_stream_that_fails_at_once_is_an_error_and_later_is_broken_off(stream: Replica) -> None:
    early = stream.call({"count": 3, "fail_at": 0}, accept="text/event-stream")
    assert (early.status, early.value["error"], early.value["code"]) == (500, "ValueError", "handler_error")
    late = stream.begin({"count": 9, "fail_at": 2}, accept="application/x-ndjson").getresponse()
    assert b"handler_error" in until_broken(late)
    assert stream.call({"count": 1}, accept="application/json").value == [0]


def test_a_slow_reader_stops_its_stream_and_nobody_elses_call(stream: Replica) -> None:
    slow = stream.begin({"count": 100_000}, accept="application/x-ndjson")
    until(lambda: stream.metric("pgpu_function_in_flight") == 1)
    assert stream.health["state"] == "hot"
    slow.close()
    assert stream.call({"count": 1}, accept="application/json").value == [0]


def test_a_stream_whose_reader_left_is_closed_in_the_handler(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with replica("Stream", arguments={"notes": str(notes)}) as started:
        reader = started.begin({"count": 1_000_000_000}, accept="application/x-ndjson")
        assert reader.getresponse().read(10)
        reader.close_now()
        until(notes.exists)
        assert started.call({"count": 1}, accept="application/json").status == 200


def test_a_stream_that_is_collected_for_a_caller_who_left_is_closed_too(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with replica("Stream", arguments={"notes": str(notes)}) as started:
        leaving = started.begin({"count": 1_000_000_000}, accept="application/json")
        until(lambda: started.metric("pgpu_function_in_flight") == 1)
        leaving.close_now()
        until(notes.exists)
        assert started.health["restarts"] == 0


def test_an_asynchronous_stream_is_the_same_to_its_caller() -> None:
    with replica("AsyncStream") as started:
        lines = started.call({"count": 100}, accept="application/x-ndjson").body.splitlines()
        assert [int(line) for line in lines] == list(range(100))


@pytest.mark.parametrize("attribute", ["Meeting", "AsyncMeeting"])
def test_as_many_calls_run_at_once_as_the_function_says(attribute: str) -> None:
    with replica(attribute) as started, ThreadPoolExecutor(4) as callers:
        answers = list(callers.map(lambda _: started.call({}).status, range(4)))
        assert answers == [200] * 4


def test_what_came_while_a_batch_ran_is_the_next_batch(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with replica("Batched") as started:
        first = started.begin({"x": 1, "hold": str(gate)})
        until((tmp_path / "gate-reached").exists)
        others = [started.begin({"x": 1, "hold": ""}) for _ in range(10)]
        until(lambda: started.metric("pgpu_function_in_flight") == 11)
        gate.touch()
        assert answer_of(first).value == 1
        assert sorted(answer_of(each).value for each in others) == [2, 2] + [8] * 8


def test_a_result_of_a_batch_that_is_an_exception_fails_its_request_alone(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with replica("Batched") as started:
        first = started.begin({"x": 1, "hold": str(gate)})
        until((tmp_path / "gate-reached").exists)
        others = [started.begin({"x": number, "hold": ""}) for number in (-1, 1)]
        until(lambda: started.metric("pgpu_function_in_flight") == 3)
        gate.touch()
        assert answer_of(first).value == 1
        failed, whole = (answer_of(each) for each in others)
        assert (failed.status, failed.value["error"]) == (500, "ValueError")
        assert (whole.status, whole.value) == (200, 2)
