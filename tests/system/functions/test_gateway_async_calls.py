"""Calls that a gateway keeps: asynchronous ones survive it, named ones run once, events are served once."""

import http.client
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.functions.gateways import Gateway, free_port, function, gateway
from tests.system.functions.replicas import Answer
from tests.waiting import until

from pgpu.services.messages import Bearer
from pgpu.structs import replace

EVENT = {"ce_id": "e1", "ce_source": "/tests", "ce_specversion": "1.0", "ce_type": "test"}


def finished(made: Gateway, location: str) -> Answer:
    def answer() -> Answer | None:
        found = made.get(location)
        return None if found.status == 202 else found

    found = until(answer)
    assert found is not None
    return found


def count(notes: Path, line: str) -> int:
    return notes.read_text().splitlines().count(line) if notes.exists() else 0


def test_kept_calls_and_events(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    fickle = function("fickle", "Fickle", arguments={"notes": str(notes)})
    with gateway(function("echo", "Echo"), fickle, function("stream", "Stream")) as made:
        accepted = made.call("echo", {"x": 3}, prefer="respond-async")
        assert (accepted.status, accepted.headers["preference-applied"]) == (202, "respond-async")
        location = accepted.headers["location"]
        assert finished(made, location).value["x"] == 3
        assert made.call("", None, location, "DELETE").status == 204
        assert made.get(location).status == 404

        path = "/functions/fickle/calls/mine"
        assert made.call("", {"do": "once"}, path, "PUT").status == 202
        assert made.call("", {"do": "once"}, path, "PUT").status == 202
        assert finished(made, path).body == b"once"
        assert made.call("", {"do": "other"}, path, "PUT").value["code"] == "call_differs"
        assert count(notes, "begin once") == 1

        stream = made.call("stream", {"count": 3}, prefer="respond-async", accept="application/x-ndjson")
        assert finished(made, stream.headers["location"]).body == b"0\n1\n2\n"

        first = made.call("fickle", {"do": "event"}, **EVENT)
        assert (first.status, first.body) == (200, b"event")
        assert made.call("fickle", {"do": "event"}, **EVENT).body == b"event"
        whole = {"specversion": "1.0", "id": "e1", "source": "/tests", "type": "test", "data": {"do": "event"}}
        for kind in ("application/cloudevents+json", "Application/CloudEvents+JSON; charset=utf-8"):
            assert made.call("fickle", json.dumps(whole).encode(), content_type=kind).status == 200
        assert count(notes, "begin event") == 1
        for _ in range(2):  # what failed is served again
            assert made.call("fickle", {"do": "raise"}, **{**EVENT, "ce_id": "e2"}).status == 500
        assert count(notes, "begin raise") == 2


@pytest.mark.parametrize("headers", [{"prefer": "respond-async"}, {"prefer": "wait=1"}, EVENT])
def test_a_kept_body_may_be_larger_than_a_message(headers: dict[str, str]) -> None:
    body = os.urandom(5 << 20)
    with gateway(function("reverse", "Reverse")) as made:
        answer = made.call("reverse", body, content_type="application/octet-stream", **headers)
        if answer.status == 202:
            answer = finished(made, answer.headers["location"])
        assert (answer.status, answer.body == body[::-1]) == (200, True)


def test_a_call_is_its_callers_alone(tmp_path: Path) -> None:
    """What one keeps under an id that another guesses is neither read nor cancelled by them, and theirs is a call of its own."""
    notes, port = tmp_path / "notes", free_port()
    its = function("it", "Fickle", public=True, arguments={"notes": str(notes)})
    path = "/functions/it/calls/1"
    with gateway(its, words=(str(port),)) as made:
        made.desk.allow("one", Bearer(function=its.identity))
        made.desk.allow("two", Bearer(function=its.identity))
        callers = [None, "one", "two"]
        for number, token in enumerate(callers):
            assert tcp(port, "PUT", path, token, {"do": f"call {number}"})[0] == 202
        for number, token in enumerate(callers):
            assert fetched(port, path, token) == b"call %d" % number
        assert tcp(port, "DELETE", path, "two")[0] == 204
        assert [tcp(port, "GET", path, token)[0] for token in callers] == [200, 200, 404]

        kept = {
            token: tcp(port, "POST", "/functions/it", token, {"do": "x"}, prefer="respond-async") for token in callers
        }
        for token, (_, _, location) in kept.items():
            assert fetched(port, location, token) == b"x"
            assert {
                tcp(port, how, location, other)[0] for how in ("GET", "DELETE") for other in callers if other != token
            } == {404}

        for token in callers * 2:
            assert tcp(port, "POST", "/functions/it", token, {"do": "event"}, **EVENT)[0] == 200
        assert count(notes, "begin event") == len(callers)


def tcp(
    port: int, method: str, path: str, token: str | None, body: object = None, **headers: str
) -> tuple[int, bytes, str]:
    """Ask with a token; return status, body and location."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    shown = {} if token is None else {"authorization": f"Bearer {token}"}
    connection.request(method, path, json.dumps(body), {"content-type": "application/json", **shown, **named})
    reply = connection.getresponse()
    read = reply.read()
    connection.close()
    return reply.status, read, reply.getheader("location", "")


def fetched(port: int, location: str, token: str | None) -> bytes:
    """Wait for the answer of a kept call."""
    until(lambda: tcp(port, "GET", location, token)[0] == 200)
    return tcp(port, "GET", location, token)[1]


def test_calls_survive_a_gateway_that_is_killed(tmp_path: Path) -> None:
    notes, gate = tmp_path / "notes", tmp_path / "gate"
    words = {"arguments": {"notes": str(notes)}}
    slow = function("slow", "SlowToStart", arguments={"gate": str(gate)})
    with gateway(
        slow, function("once", "Fickle", **words), function("again", "Fickle", idempotent=True, **words)
    ) as made:
        waiting = [made.call("slow", {}, prefer="respond-async").headers["location"] for _ in range(3)]
        once = made.call("once", {"do": "hang"}, prefer="respond-async").headers["location"]
        again = made.call("again", {"do": "burn", "seconds": 0.3}, prefer="respond-async").headers["location"]
        until(lambda: count(notes, "begin hang") and count(notes, "begin burn"))
        made.end(signal.SIGKILL)
        gate.touch()
        made.start()
        assert [finished(made, location).status for location in waiting] == [200, 200, 200]
        assert finished(made, again).body == b"burn"
        assert finished(made, once).value["code"] == "interrupted"
    assert count(notes, "begin hang") == 1


def test_calls_that_were_kept_are_never_another_functions_that_got_the_name(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with gateway(
        function("echo", "Echo"), function("slow", "SlowToStart", arguments={"gate": str(tmp_path / "gate")})
    ) as made:
        kept, named = made.call("echo", {"x": 1}, prefer="respond-async").headers["location"], "/functions/echo/calls/1"
        made.call("", {"x": 1}, named, "PUT")
        assert (finished(made, kept).status, finished(made, named).status) == (200, 200)
        waiting = made.call("slow", {"do": "secret"}, prefer="respond-async").headers["location"]
        made.end(signal.SIGKILL)
        made.desk.put(
            replace(function("echo", "Echo"), created_at_seconds=1.0),
            replace(function("slow", "Fickle", arguments={"notes": str(notes)}), created_at_seconds=1.0),
        )
        made.start()
        assert [made.get(location).status for location in (kept, named, waiting)] == [404, 404, 404]
        assert made.call("slow", {"do": "mine"}).body == b"mine"
        assert count(notes, "begin secret") == 0


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"inputs": 1}', b"\xff" * 40, b'{"inputs":[{"name":"x"}]}'])
def test_nonsense_is_the_callers_error(shared: Gateway, body: bytes) -> None:
    inference = shared.call("", body, "/v2/models/echo/infer", content_type="application/json")
    binary = shared.call("", body, "/v2/models/echo/infer", inference_header_content_length="7")
    event = shared.call("echo", body, content_type="application/cloudevents+json")
    half = shared.call("echo", body, ce_id="x", ce_source="y", content_type="application/json")
    for answer in (inference, binary, event, half):
        assert 400 <= answer.status < 500
        assert set(answer.value) == {"error", "code", "request_id"}


@pytest.fixture(scope="module")
def shared() -> Iterator[Gateway]:
    with gateway(function("echo", "Echo")) as made:
        yield made
