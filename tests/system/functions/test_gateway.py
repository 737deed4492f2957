"""Calls through a gateway: held while cold, answered or refused clearly, whatever ends in the middle."""

import contextlib
import http.client
import json
import os
import signal
from collections.abc import Iterator

import psutil
import pytest
from tests.system.functions.gateways import PHASES, Gateway, free_port, function, gateway
from tests.system.functions.replicas import Answer, answer_of
from tests.waiting import until

from pgpu.services.messages import Bearer
from pgpu.structs import replace

MIB = 1 << 20


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One gateway for who leaves it as it was."""
    notes = tmp_path_factory.mktemp("notes") / "notes"
    functions = [
        function("echo", "Echo", queue_limit=200),
        function("reverse", "Reverse", max_body="2MiB"),
        function("fickle", "Fickle", queue_limit=1, arguments={"notes": str(notes)}),
        function("again", "Fickle", idempotent=True, arguments={"notes": str(notes)}),
        function("stream", "Stream"),
        function("broken", "Broken", timeout="0.5s"),
        function("stuck", "SlowToStart", timeout="0.3s", arguments={"gate": str(notes) + ".gate"}),
        function("many", "Fickle", max_replicas=3),
        replace(function("open", "Echo", public=True), owner_uid=os.getuid() + 1),
    ]
    with gateway(*functions) as made:
        (made.root / "notes").symlink_to(notes)
        yield made


def codes(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.value["code"]


def starts(made: Gateway, name: str) -> int:
    return sum(record["function"] == name for record in made.desk.records().values())


def front_pid(made: Gateway, name: str) -> int:
    return next(int(record["pid"]) for record in made.desk.records().values() if record["function"] == name)


def begun_times(made: Gateway, line: str) -> int:
    notes = made.root / "notes"
    return notes.read_text().count(line) if notes.exists() else 0


def begun(made: Gateway, line: str) -> bool:
    return begun_times(made, line) > 0


def test_fifty_calls_to_a_cold_function_are_fifty_answers_and_one_start(served: Gateway) -> None:
    calls = [served.begin("echo", {"x": number}) for number in range(50)]
    answers = [answer_of(call) for call in calls]
    assert [answer.value["x"] for answer in answers] == list(range(50))
    assert len({answer.value["pid"] for answer in answers}) == 1
    assert starts(served, "echo") == 1
    assert "cold;dur=" in answers[0].headers["server-timing"]
    start = until(lambda: [each for each in served.desk.starts() if each["function"] == "echo"])[0]
    assert [name for name, _ in start["phases"]] == PHASES


def test_an_answer_has_its_id_its_times_and_its_trace(served: Gateway) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    answer = served.call("echo", {"x": 1}, x_request_id="mine", traceparent=trace)
    assert (answer.status, answer.headers["x-request-id"], answer.headers["traceparent"]) == (200, "mine", trace)
    assert "exec;dur=" in answer.headers["server-timing"]


def test_tensors_and_descriptions_go_through(served: Gateway) -> None:
    asked = {"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [7]}]}
    assert served.call("", asked, "/v2/models/echo/infer").status == 200
    assert served.call("", asked, "/v2/models/echo/versions/1/infer").status == 200
    assert codes(served.call("", asked, "/v2/models/echo/versions/2/infer")) == (404, "no_version")
    assert served.get("/v2/models/echo").value["inputs"][0]["name"] == "x"
    assert served.get("/v2/models/echo/ready").value["ready"]
    assert served.get("/functions/echo/openapi.json").value["openapi"].startswith("3.1")


def test_a_large_body_goes_there_and_back_and_a_larger_one_is_refused_before_it_is_read(served: Gateway) -> None:
    body = os.urandom(3 * MIB // 2)
    assert served.call("reverse", body, content_type="application/octet-stream").body == body[::-1]
    connection = served.connection()
    connection.putrequest("POST", "/functions/reverse")
    connection.putheader("content-length", str(1 << 30))
    connection.endheaders()
    assert codes(answer_of(connection)) == (413, "body_too_large")


def test_a_body_without_end_is_refused_in_the_middle_and_never_held(served: Gateway) -> None:
    assert served.process is not None
    before = psutil.Process(served.process.pid).memory_info().rss
    connection = served.connection()
    connection.putrequest("POST", "/functions/reverse")
    connection.putheader("transfer-encoding", "chunked")
    connection.endheaders()
    with contextlib.suppress(OSError):  # nobody reads to the end
        for _ in range(256):
            connection.send(b"%x\r\n%b\r\n" % (MIB, bytes(MIB)))
    assert psutil.Process(served.process.pid).memory_info().rss - before < 32 * MIB
    assert served.call("echo", {"x": 1}).status == 200


def test_a_worker_that_dies_is_a_502_and_the_next_call_is_served(served: Gateway) -> None:
    assert codes(served.call("fickle", {"do": "die"})) == (502, "worker_died")
    assert served.call("fickle", {"do": "this"}).body == b"this"


def test_a_users_error_is_a_500_with_its_type_alone(served: Gateway) -> None:
    answer = served.call("fickle", {"do": "raise"})
    assert codes(answer) == (500, "handler_error")
    assert b"secret" not in answer.body


def test_a_client_that_leaves_takes_its_call_with_it(served: Gateway) -> None:
    call = served.begin("fickle", {"do": "until cancelled"})
    until(lambda: begun(served, "begin until cancelled"))
    call.close_now()
    until(lambda: begun(served, "cancelled\n"))
    assert served.call("fickle", {"do": "after"}).body == b"after"


def test_more_than_may_wait_are_429_with_a_time_to_come_again(served: Gateway) -> None:
    long = [served.begin("fickle", {"do": "until cancelled"}) for _ in range(2)]
    until(lambda: served.metric("pgpu_gateway_now", "fickle", "in_flight") == 2)
    refused = served.call("fickle", {"do": "no room"})
    assert codes(refused) == (429, "queue_full")
    assert int(refused.headers["retry-after"]) >= 1
    for call in long:
        call.close_now()
    until(lambda: served.call("fickle", {"do": "x"}).status == 200)


def test_a_replica_that_is_killed_is_a_502_and_another_one_serves(served: Gateway) -> None:
    call = served.begin("again", {"do": "hang"})
    until(lambda: begun(served, "begin hang"))
    pid = front_pid(served, "again")
    (served.root / "notes").write_text("")
    os.kill(pid, signal.SIGKILL)
    until(lambda: begun(served, "begin hang"))  # idempotent: made again elsewhere
    call.close_now()
    assert front_pid(served, "again") != pid


def test_what_a_replica_had_when_it_was_killed_is_not_given_to_another(served: Gateway) -> None:
    before = begun_times(served, "begin hang")
    call = served.begin("fickle", {"do": "hang"})
    until(lambda: begun_times(served, "begin hang") == before + 1)
    os.kill(front_pid(served, "fickle"), signal.SIGKILL)
    assert codes(answer_of(call)) == (502, "worker_died")
    assert served.call("fickle", {"do": "next"}).body == b"next"
    assert begun_times(served, "begin hang") == before + 1


def test_a_stream_flows_and_a_slow_reader_holds_nobody_up(served: Gateway) -> None:
    slow = served.begin("stream", {"count": 200_000}, accept="application/x-ndjson")
    head = slow.getresponse()
    assert head.read(2) == b"0\n"
    assert served.call("echo", {"x": 5}).value["x"] == 5
    slow.close_now()
    quick = served.call("stream", {"count": 3}, accept="application/x-ndjson")
    assert quick.body == b"0\n1\n2\n"


def test_streams_take_turns_and_leave_nothing_open(served: Gateway) -> None:
    assert served.process is not None
    gateway_process = psutil.Process(served.process.pid)
    before = gateway_process.num_fds()
    streams = [served.begin("stream", {"count": 50}, accept="application/x-ndjson") for _ in range(4)]
    assert {answer_of(stream).body.count(b"\n") for stream in streams} == {50}
    for stream in streams:
        stream.close_now()
    until(lambda: gateway_process.num_fds() <= before)


def test_a_constructor_that_fails_or_hangs_is_a_503(served: Gateway) -> None:
    assert codes(served.call("stuck", {})) == (503, "starting_timeout")
    answer = served.call("broken", {})
    assert answer.status == 503
    until(lambda: codes(served.call("broken", {})) == (503, "crash_loop"))
    until(
        lambda: (
            "failed" in [each.get("state") for each in served.desk.records().values() if each["function"] == "broken"]
        )
    )


def test_slow_calls_get_more_replicas_up_to_the_maximum(served: Gateway) -> None:
    assert served.call("many", {"do": "burn", "seconds": 0.4}).status == 200
    calls = [served.begin("many", {"do": "burn", "seconds": 0.2}) for _ in range(8)]
    assert all(answer_of(call).status == 200 for call in calls)
    assert starts(served, "many") == 3


def test_a_public_function_needs_no_token_and_its_caller_no_owner(served: Gateway) -> None:
    assert served.call("open", {"x": 2}).value["x"] == 2


def test_strange_paths_and_methods_are_refused(served: Gateway) -> None:
    assert codes(served.get("/functions/echo")) == (405, "bad_method")
    assert codes(served.get("/nothing")) == (404, "not_found")
    assert codes(served.call("", {}, "/functions/nobody")) == (404, "not_found")
    assert codes(served.call("echo", {}, request_timeout="soon")) == (400, "bad_timeout")
    assert served.get("/openapi.json").value["openapi"] == "3.1.0"
    assert b"pgpu_gateway_requests_total" in served.get("/metrics").body


def test_a_stranger_is_told_nothing_of_a_function() -> None:
    mine = function("mine", "Echo")
    with gateway(replace(mine, owner_uid=os.getuid() + 1)) as made:
        made.end()
        made.desk.allow("good", Bearer(function=mine.identity))
        made.desk.allow("other", Bearer(function="another@0.0"))
        made.desk.allow("owner", Bearer(uid=os.getuid() + 1))
        port = free_port()
        made.start(str(port))
        answers = {}
        for name in ("mine", "nobody"):
            for token in (None, "bad", "other", "owner", "good"):
                answers[name, token] = tcp_call(port, name, token)
        for token in (None, "bad", "other"):
            assert answers["mine", token] == answers["nobody", token]
        assert [answers["mine", token][0] for token in (None, "bad", "other", "owner", "good")] == [
            401,
            401,
            404,
            200,
            200,
        ]
        assert answers["nobody", "owner"][0] == 404


def tcp_call(port: int, name: str, token: str | None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    headers = {"content-type": "application/json"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    connection.request("POST", f"/functions/{name}", b'{"x":1}', headers)
    reply = connection.getresponse()
    said = json.loads(reply.read())
    connection.close()
    return reply.status, said.get("code", "")
