"""An ASGI application behind front and worker: its own paths and methods, its lifespan, its streams, its failures."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.functions.applications import ODD_BODIES, ODD_HEADS
from tests.system.functions.gateways import function, gateway
from tests.system.functions.replicas import Replica, answer_of, replica, until_broken
from tests.waiting import until

from pgpu.structs import replace


@pytest.fixture(scope="module")
def application() -> Iterator[Replica]:
    with replica("app", module="applications.py", concurrency=3) as served:
        yield served


def log_of(served: Replica, words: str) -> str:
    return until(lambda: log if words in (log := served.log.read_text()) else "", served.log.read_text)


def test_an_application_answers_below_every_path_with_the_state_of_its_lifespan(application: Replica) -> None:
    answer = answer_of(application.begin(b"hello", "/tell/a%20b?q=1", "PUT", x_mine="yes", x_request_id="no id!"))
    assert answer.headers["x-request-id"] != "no id!"
    assert (answer.status, answer.value) == (
        201,
        {
            "method": "PUT", "path": "a b", "url": "http://localhost/tell/a b?q=1", "body": "hello", "header": "yes",
            "weights": 7, "id": answer.headers["x-request-id"],
        },
    )  # fmt: skip
    assert {"x-request-id", "server-timing"} <= set(answer.headers)
    below = application.get("/functions/it/tell/deep").value
    assert (below["path"], below["url"]) == ("deep", "http://localhost/functions/it/tell/deep")
    assert application.get("/functions/it").body == b"at once"
    assert application.get("/no/such/path").status == 404
    assert application.call(path="/raise").status == 405
    assert application.health["state"] == "hot", "health stays the front's"
    assert application.get("/openapi.json").status == 404, "and what it says of itself is its own"


def test_a_large_answer_and_two_cookies_arrive_whole(application: Replica) -> None:
    connection = application.begin(None, "/cookies", "GET")
    reply = connection.getresponse()
    assert len(reply.read()) == 2_000_000
    cookies = [value for name, value in reply.getheaders() if name.lower() == "set-cookie"]
    assert [each.partition(";")[0] for each in cookies] == ["a=1", "b=2"]


def test_a_stream_is_passed_on_and_one_that_fails_has_no_proper_end(application: Replica) -> None:
    assert application.get("/stream?count=100").body.split() == [b"%d" % number for number in range(100)]
    reply = application.begin(None, "/stream?count=9&fail_at=2", "GET").getresponse()
    assert until_broken(reply) == b"0\n1\n"
    log_of(application, f"request {reply.headers['x-request-id']} failed")


def test_an_exception_is_told_by_the_application_and_stays_in_the_log(application: Replica) -> None:
    answer = application.get("/raise")
    assert (answer.status, b"secret" in answer.body) == (500, False)
    log = log_of(application, f"request {answer.headers['x-request-id']} failed")
    assert 'KeyError: "somebody\'s secret"' in log


def test_a_caller_who_leaves_is_told_to_the_application(application: Replica) -> None:
    caller = application.begin(None, "/until_left", "GET")
    log_of(application, "they came")
    caller.close_now()
    log_of(application, "they left")


def test_as_many_calls_are_inside_as_are_declared(application: Replica) -> None:
    begun = [application.begin(None, "/meet", "GET") for _ in range(3)]
    assert [answer_of(each).body for each in begun] == [b"met"] * 3


def test_a_call_whose_caller_left_before_its_turn_is_never_begun() -> None:
    with replica("app", module="applications.py") as served:
        first = served.begin(None, "/until_left", "GET")
        log_of(served, "they came")
        served.begin(None, "/raise", "GET").close_now()
        until(lambda: b'code="cancelled",status="499"' in served.get("/metrics").body)
        first.close_now()
        assert served.get("/").body == b"at once"
        assert "they left" in served.log.read_text()
        assert "secret" not in served.log.read_text()


def test_lifespan_ends_with_the_worker() -> None:
    with replica("app", module="applications.py") as served:
        assert served.call(b"").body == b"at once"
        log_of(served, "done behind it")
        served.process.send_signal(signal.SIGTERM)
        served.process.wait()
        assert served.log.read_text().split("\n")[0] == "started"
        assert "stopped" in served.log.read_text()


def test_an_application_of_ones_own_is_constructed_and_may_not_end_in_the_middle() -> None:
    with replica("Bare", module="applications.py", arguments={"word": "constructed"}) as served:
        assert served.get("/").body == b"constructed"
        half = served.get("/half")
        assert (half.status, half.value["error"]) == (500, "UnfinishedError")
        for odd in ODD_HEADS:
            assert (served.get(odd).status, served.get(odd).value["error"]) == (500, "ValueError"), odd
        for odd in ODD_BODIES:
            assert (served.get(odd).status, served.get(odd).value["error"]) == (500, "TypeError"), odd
        left = served.get("/exit")
        assert (left.status, left.value["error"]) == (500, "SystemExit")
        assert served.get("/").body == b"constructed"
        assert served.health["restarts"] == 0


def test_an_answer_that_has_no_body_puts_no_words_into_the_next_one_and_every_cookie_arrives() -> None:
    with replica("Bare", module="applications.py") as served, contextlib.closing(served.kept_connection()) as kept:
        for status in (204, 304):
            assert kept.ask(f"/{status}").status == status
            assert kept.ask("/").body == b"bare"
        kept.request("GET", "/cookies")
        assert kept.getresponse().msg.get_all("set-cookie") == [f"{number}=1" for number in range(40)]


def test_an_application_that_cannot_start_says_so() -> None:
    with replica("without_weights", module="applications.py", is_ready=False) as served:
        until(lambda: served.health["reason"])
        assert served.health["reason"] == "StartupFailedError"
        assert "RuntimeError: no weights" in served.log.read_text()


def test_whatever_takes_the_three_arguments_is_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import pgpu\n"
        "async def plain(scope, receive, send):\n"
        "    await send({'type': 'http.response.start', 'status': 204, 'headers': []})\n"
        "    await send({'type': 'http.response.body'})\n"
        "@pgpu.function(asgi=True)\n"
        "async def other_names(a, b, c):\n"
        "    await plain(a, b, c)\n"
    )
    for name in ("plain", "other_names"):
        with replica(name, module="app.py", source=tmp_path) as served:
            assert served.get("/anything").status == 204


def test_a_gateway_passes_on_what_is_below_an_applications_path_and_nothing_below_another_functions() -> None:
    app = function("app", "app", asgi=True)
    version = replace(app.versions[0], app=f"{Path(__file__).with_name('applications.py')}:app")
    with gateway(replace(app, versions=(version,)), function("echo", "Echo")) as served:
        told = served.call("", b"", "/functions/app/tell/deep?q=1", "PUT")
        assert (told.status, told.value["method"], told.value["path"]) == (201, "PUT", "deep")
        assert told.value["url"] == "http://localhost/functions/app/tell/deep?q=1"
        assert served.get("/functions/app").body == b"at once"
        event = {"ce_id": "1", "ce_source": "/tests", "ce_specversion": "1.0", "ce_type": "t"}
        for path in ("one", "two", "one"):
            assert served.call("", b"", f"/functions/app/tell/{path}", **event).value["path"] == path
        reply = served.begin("", None, "/functions/app/cookies", "GET").getresponse()
        assert len(reply.read()) == 2_000_000
        assert [value[:3] for name, value in reply.getheaders() if name.lower() == "set-cookie"] == ["a=1", "b=2"]
        assert served.get("/functions/app/openapi.json").status == 404
        assert served.get("/functions/echo/openapi.json").status == 200
        assert served.get("/functions/echo/tell").status == 404
        assert served.get("/functions/echo").status == 405
        assert served.get("/v2/models/app/infer").status == 405
