"""Who stops waiting is not waited for: what a client asked that hung up ends soon after it."""

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.types import Message, Scope
from tests.contract.in_process import AsPeer, asked, make_app
from tests.contract.test_server_submissions import GOOD
from tests.waiting import DEADLINE_SECONDS, until

from pgpu.engine.streams.frames import Hello, Kind, encode_frame, encode_hello
from pgpu.server.peer_credentials import HANG_UP_KEY, PeerCredentials, has_hung_up

ROOT = PeerCredentials(1, 0, 0, frozenset())


def with_waiting_job(root: Path) -> tuple[FastAPI, str]:
    app = make_app(root)
    status, _, body = asked(AsPeer(app, ROOT), "POST", "/v1/jobs", json.dumps(GOOD).encode())
    assert status == 201, body
    return app, json.loads(body)[0]["id"]


async def ask_and_leave(app: FastAPI, scope: Scope, sent: list[Message], until_said: str) -> None:
    """Ask, and hang up once something was said, or all was sent: as the kernel sees it, though nobody reads from it."""
    coming = list(sent)
    is_gone = False
    said: list[str] = []

    async def receive() -> Message:
        nonlocal is_gone
        if not coming:
            await asyncio.Event().wait()
        message = coming.pop(0)
        is_gone = not coming
        return message

    async def send(message: Message) -> None:
        said.append(message["type"])

    state: dict[str, Callable[[], bool]] = {HANG_UP_KEY: lambda: is_gone or not until_said}
    async with asyncio.timeout(DEADLINE_SECONDS / 3):
        await AsPeer(app, ROOT)({**scope, "state": state}, receive, send)
    assert not until_said or until_said in said


def scope_of(kind: str, path: str) -> Scope:
    return {
        "type": kind,
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"pgpu")],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("pgpu", 80),
        "client": None,
        "subprotocols": [],
    }


@pytest.mark.parametrize("verb", ["wait", "granted"])
def test_a_wait_ends_with_its_client(tmp_path: Path, verb: str) -> None:
    app, job_id = with_waiting_job(tmp_path)
    asyncio.run(ask_and_leave(app, scope_of("http", f"/v1/jobs/{job_id}/{verb}"), [], ""))


def test_an_attach_that_sent_input_before_its_job_started_ends_with_its_client(tmp_path: Path) -> None:
    app, job_id = with_waiting_job(tmp_path)
    sent: list[Message] = [
        {"type": "websocket.connect"},
        {"type": "websocket.receive", "bytes": encode_hello(Hello(0, holds_back=False, owns_stdin=True))},
        {"type": "websocket.receive", "bytes": encode_frame(Kind.STDIN, b"x")},
    ]
    asyncio.run(ask_and_leave(app, scope_of("websocket", f"/v1/jobs/{job_id}/attach"), sent, "websocket.accept"))


@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET])
def test_a_hang_up_is_seen_behind_what_nobody_read(family: socket.AddressFamily) -> None:
    with socket.socket(family) as listener:
        listener.bind("" if family == socket.AF_UNIX else ("127.0.0.1", 0))
        listener.listen()
        client = socket.socket(family)
        client.connect(listener.getsockname())
        connection, _ = listener.accept()
        with connection:
            client.sendall(b"GET ")
            assert not has_hung_up(connection)
            client.close()
            until(lambda: has_hung_up(connection))
            assert connection.recv(10) == b"GET "
        assert has_hung_up(connection)
