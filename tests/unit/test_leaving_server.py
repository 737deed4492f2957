"""A server that was told to go answers some with its library's own words: that is no refusal, and is asked again."""

import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from pgpu.client.address import UnixAddress
from pgpu.client.http_client import HttpJobStream
from pgpu.client.http_transport import HttpTransport
from pgpu.client.websocket import WebSocketChannel
from pgpu.errors import PgpuError, ServerFullError, ServerUnavailableError
from pgpu.server.responses import raw_error_response

LEAVING = (
    b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: 21\r\nConnection: close\r\n\r\nInternal Server Error"
)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
REFUSAL = b'{"error": {"kinds": ["PgpuError"], "message": "no", "hint": null, "nearest_bytes": null}}'
OURS = b"HTTP/1.1 500 x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(REFUSAL), REFUSAL)
FULL = raw_error_response(
    503, ServerFullError("this server has no room for another connection", hint="try again later")
)


@contextmanager
def answering(answers: Sequence[bytes]) -> Iterator[UnixAddress]:
    """Answer one connection after the other with these bytes, whatever they ask."""
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listener:
        path = Path(directory) / "s.sock"
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            for each in answers:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(each)

        thread = threading.Thread(target=answer)
        thread.start()
        yield UnixAddress(path)
        thread.join()


def test_a_question_that_a_leaving_server_did_not_answer_is_asked_again() -> None:
    with answering([LEAVING, LEAVING, ANSWER]) as address:
        assert HttpTransport(address).ask("GET", "/v1/jobs") == {}


def test_a_question_that_may_not_be_asked_twice_is_not() -> None:
    with answering([LEAVING]) as address, pytest.raises(ServerUnavailableError, match="went away"):
        HttpTransport(address).ask("POST", "/v1/jobs/x/signal", {}, is_repeatable=False)


def test_a_servers_own_error_is_told_at_once() -> None:
    with answering([OURS]) as address, pytest.raises(PgpuError, match="no"):
        HttpTransport(address).ask("GET", "/v1/jobs")


def test_a_line_that_a_leaving_server_does_not_take_counts_as_broken() -> None:
    with (
        answering([LEAVING]) as address,
        HttpTransport(address).connect() as connection,
        pytest.raises(ConnectionResetError),
    ):
        WebSocketChannel(connection, "/v1/jobs/x/attach", {})


def test_a_server_that_has_answered_may_be_full_for_a_while() -> None:
    with answering([ANSWER, FULL, FULL, ANSWER]) as address:
        server = HttpTransport(address)
        assert server.ask("GET", "/v1/jobs") == {}
        assert server.ask("POST", "/v1/jobs/x/signal", {}, is_repeatable=False) == {}


def test_who_finds_a_server_full_at_first_is_told_at_once() -> None:
    with answering([FULL]) as address, pytest.raises(ServerFullError, match="no room"):
        HttpTransport(address).ask("GET", "/v1/jobs")


def test_a_line_to_a_server_that_is_full_for_a_while_goes_on() -> None:
    with answering([ANSWER, FULL, FULL, OURS]) as address:
        server = HttpTransport(address)
        server.ask("GET", "/v1/jobs")
        with pytest.raises(PgpuError, match=r"^no$"):  # What the server says at last.
            next(HttpJobStream(server, "x").records())
