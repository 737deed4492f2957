"""HTTP connections of fronts and gateways: what they take for a request, and how long they stay when nobody asks."""

import socket
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from pgpu.functions.gateway.gateway_server import GatewayConnection
from pgpu.functions.http.http_connection import HttpConnection
from pgpu.functions.ipc.call_messages import Body, Reply
from pgpu.functions.requests.request_queue import PendingRequest, ResponseSink

KEEP_SECONDS = 75
H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAA\r\n"


def post(body: bytes, more: bytes = b"") -> bytes:
    return b"POST /functions/it HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n%b" % (more, len(body), body)


class Echo:
    """Answers each call with its body, at once or when it is told to."""

    hot_since_seconds = load_seconds = 0.0

    def __init__(self) -> None:
        self.is_slow = False
        self.headers: list[dict[str, str]] = []
        self._owed: list[tuple[Body, ResponseSink]] = []

    def is_call(self, _path: str) -> bool:
        return True

    def accept_direct(self, scope: Any, headers: dict[str, str]) -> PendingRequest:
        self.headers.append(headers)
        return PendingRequest("id", "POST", scope["path"], "", headers, b"", None, 0.0, 1e12, 60.0, None)

    def submit(self, ticket: PendingRequest, body: Body, _file: int | None, asker: ResponseSink) -> None:
        ticket.sink = asker
        self._owed.append((body, asker))
        if not self.is_slow:
            self.answer()

    def answer(self) -> None:
        body, asker = self._owed.pop(0)
        asker.reply(Reply(200, {"x": "y"}, body), None)

    def abandon(self, _ticket: PendingRequest) -> None: ...

    def replica_of(self, _ticket: PendingRequest) -> "Echo":
        return self

    def credit(self, _ticket: PendingRequest) -> None: ...


class Timer:
    def __init__(self, at_seconds: float, act: Callable[[], None]) -> None:
        self.at_seconds, self.act = at_seconds, act
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now_seconds = 0.0
        self.set: list[Timer] = []

    def time(self) -> float:
        return self.now_seconds

    def call_at(self, at_seconds: float, act: Callable[[], None]) -> Timer:
        self.set.append(Timer(at_seconds, act))
        return self.set[-1]

    def call_later(self, seconds: float, act: Callable[[], None]) -> Timer:
        return self.call_at(self.now_seconds + seconds, act)

    @property
    def waiting(self) -> list[Timer]:
        return [each for each in self.set if not each.is_cancelled and each.at_seconds > self.now_seconds]

    def go_to(self, seconds: float) -> None:
        while due := [each for each in self.waiting if each.at_seconds <= seconds]:
            first = min(due, key=lambda each: each.at_seconds)
            self.now_seconds = first.at_seconds
            first.act()
        self.now_seconds = seconds


class Transport:
    """What was written, and whether it was closed."""

    def __init__(self) -> None:
        self.written = b""
        self._is_closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self._is_closed = True

    def is_closing(self) -> bool:
        return self._is_closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_extra_info(self, name: str) -> Any:
        return self if name == "socket" else None

    family = socket.AF_INET

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", 80)

    getpeername = getsockname


class Connected:
    """One connection without a socket."""

    def __init__(self, kind: type[HttpConnection]) -> None:
        self.echo, self.loop, self.transport = Echo(), Loop(), Transport()
        served = type("Served", (kind,), {"handler": self.echo, "patience_seconds": 1e9})
        config = uvicorn.Config(
            nothing, ws="none", lifespan="off", log_level="critical", timeout_keep_alive=KEEP_SECONDS
        )
        self.connection = served(config, ServerState(), {}, self.loop)
        self.connection.connection_made(self.transport)

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.connection.data_received(piece)

    @property
    def answers(self) -> int:
        return self.transport.written.count(b"HTTP/1.1 200 OK")


async def nothing(_scope: Any, _receive: Any, _send: Any) -> None:
    raise AssertionError("nothing goes the ordinary way")


@pytest.fixture(params=[HttpConnection, GatewayConnection])
def connected(request: pytest.FixtureRequest) -> Connected:
    return Connected(request.param)


def test_a_client_that_offers_http_2_is_served_in_http_1(connected: Connected) -> None:
    connected.send(post(b"body", H2C))
    assert connected.transport.written.endswith(b"\r\n\r\nbody")
    assert connected.echo.headers == [{"host": "x", "connection": "", "content-length": "4"}]
    connected.send(post(b"next", H2C) + post(b"last"))
    assert connected.answers == 3


@pytest.mark.parametrize("size", [1, 7, 60])
def test_it_may_come_in_pieces(connected: Connected, size: int) -> None:
    said = post(b"the body", H2C + b"x-more: yes\r\n")
    connected.send(*[said[start : start + size] for start in range(0, len(said), size)])
    assert connected.transport.written.endswith(b"\r\n\r\nthe body")
    assert connected.echo.headers[0]["x-more"] == "yes"


def test_one_that_offers_a_websocket_gets_a_plain_answer_and_one_that_wants_a_tunnel_none(connected: Connected) -> None:
    connected.send(post(b"body", b"connection: upgrade\r\nupgrade: websocket\r\n"))
    assert connected.answers == 1
    connected.send(b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b"HTTP/1.1 400" in connected.transport.written
    assert connected.transport.is_closing()


def test_many_offers_at_once_are_many_requests(connected: Connected) -> None:
    connected.send(post(b"body", H2C) * 2000)
    assert connected.answers == 2000


def test_a_quiet_connection_is_closed_and_one_that_is_used_is_not(connected: Connected) -> None:
    connected.send(post(b"one"))
    connected.loop.go_to(KEEP_SECONDS - 1)
    connected.send(post(b"two"))
    connected.loop.go_to(2 * KEEP_SECONDS - 2)
    assert not connected.transport.is_closing()
    connected.loop.go_to(2 * KEEP_SECONDS)
    assert connected.transport.is_closing()


def test_who_waits_for_an_answer_or_sends_slowly_is_not_quiet(connected: Connected) -> None:
    connected.send(post(b"one"))
    connected.echo.is_slow = True
    connected.send(post(b"two"))
    connected.loop.go_to(10 * KEEP_SECONDS)
    connected.echo.answer()
    connected.send(post(b"three")[:20])
    connected.loop.go_to(20 * KEEP_SECONDS)
    assert not connected.transport.is_closing()
    assert connected.answers == 2


def test_requests_of_one_connection_have_one_timer_and_none_when_it_is_gone(connected: Connected) -> None:
    for _ in range(10):
        connected.send(post(b"body"))
    looking = isinstance(connected.connection, GatewayConnection)
    assert len(connected.loop.set) == 1 + looking
    connected.connection.connection_lost(OSError())
    assert not connected.loop.waiting


def test_pipelined_requests_are_answered_in_turn_and_then_it_is_quiet(connected: Connected) -> None:
    connected.echo.is_slow = True
    connected.send(post(b"one") + post(b"two"))
    connected.echo.answer()
    connected.loop.go_to(10 * KEEP_SECONDS)
    assert not connected.transport.is_closing()
    connected.echo.answer()
    assert connected.answers == 2
    connected.loop.go_to(11 * KEEP_SECONDS)
    assert connected.transport.is_closing()
