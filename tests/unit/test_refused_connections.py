"""A client that is hung up on before it has asked tells its user why."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgpu.client.address import UnixAddress
from pgpu.client.http_transport import HttpTransport
from pgpu.client.websocket import WebSocketChannel
from pgpu.engine.submitter import account_of
from pgpu.errors import NodeError
from pgpu.server.responses import raw_error_response
from pgpu.services.access import AccessRules, Caller, Identity

WHY = NodeError("you have 256 connections to this server already", hint="end some")


@pytest.fixture
def address(tmp_path: Path) -> Iterator[UnixAddress]:
    """Where a server refuses whoever connects, without a look at what they ask."""
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def refuse() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(raw_error_response(503, WHY))

        thread = threading.Thread(target=refuse)
        thread.start()
        yield UnixAddress(path)
        thread.join()


@pytest.mark.parametrize("body", [None, "x" * (4 << 20)], ids=["a question", "a long one"])
def test_a_question_that_is_refused_at_the_door_ends_in_the_servers_words(
    address: UnixAddress, body: str | None
) -> None:
    with pytest.raises(NodeError, match="256 connections"):
        HttpTransport(address).ask("POST", "/v1/jobs", body)


def test_an_attach_that_is_refused_at_the_door_ends_in_the_servers_words(address: UnixAddress) -> None:
    with (
        contextlib.closing(HttpTransport(address).connect()) as connection,
        pytest.raises(NodeError, match="256 connections"),
    ):
        WebSocketChannel(connection, "/v1/jobs/x/attach", {})


def test_jobs_of_a_token_holder_have_the_limits_that_the_server_was_started_with() -> None:
    rules = AccessRules(limits=(("RLIMIT_NOFILE", 1024, 4096),))
    inherited = Caller(61001, is_admin=False, identity=Identity(61001, 61001, frozenset()), rules=rules).inheritance(
        None
    )
    account = account_of(inherited, ())
    assert account is not None
    assert account.limits == (("RLIMIT_NOFILE", 1024, 4096),)
