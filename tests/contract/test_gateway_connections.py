"""Who begins a request at a gateway and does not go on is sent away; who waits for an answer is not."""

import asyncio
import collections
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tests.waiting import until
from uvicorn.server import ServerState

from pgpu.functions.gateway.gateway_server import GatewayConnection
from pgpu.functions.http.request_handler import ReplicaInfo
from pgpu.functions.ipc.call_messages import Body, Reply
from pgpu.functions.requests.request_queue import PendingRequest, ResponseSink

HEAD = b"POST /functions/it HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n"


class Counter:
    """Takes every call and answers none."""

    def __init__(self) -> None:
        self.submitted: list[PendingRequest] = []
        self.abandoned: list[PendingRequest] = []

    def is_call(self, _path: str) -> bool:
        return True

    def accept_direct(self, scope: Any, headers: dict[str, str]) -> PendingRequest:
        assert scope["state"]["uid"] == os.getuid()
        return PendingRequest("id", "POST", scope["path"], "", headers, b"", None, 0.0, 1e12, 60.0, None)

    def submit(self, ticket: PendingRequest, _body: Body, _file: int | None, asker: ResponseSink) -> None:
        ticket.sink = asker
        self.submitted.append(ticket)

    def abandon(self, ticket: PendingRequest) -> None:
        self.abandoned.append(ticket)

    def replica_of(self, _ticket: PendingRequest) -> ReplicaInfo:
        raise AssertionError("nothing is answered")


async def nothing(_scope: Any, _receive: Any, _send: Any) -> None:
    raise AssertionError("nothing goes the ordinary way")


@contextlib.asynccontextmanager
async def listening(path: Path, counter: Counter, app: Any = nothing, **words: object) -> AsyncIterator[None]:
    kind = type("Impatient", (GatewayConnection,), {"handler": counter, "patience_seconds": 0.02, **words})
    config = uvicorn.Config(app, http=kind, ws="none", lifespan="off", log_level="critical")
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(lambda: kind(config, state, {}), path)
    yield
    server.close()


@contextlib.contextmanager
def connected(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(os.fspath(path))
        end.setblocking(False)
        yield end


async def sent_away(end: socket.socket) -> bool:
    """Wait until the other side ends it."""
    with contextlib.suppress(ConnectionError):
        return await asyncio.get_running_loop().sock_recv(end, 1) == b""
    return True


@pytest.mark.parametrize("said", [b"", b"POST /functions/it HTT", HEAD, HEAD + b"abc"])
def test_a_request_that_does_not_go_on_is_given_up(tmp_path: Path, said: bytes) -> None:
    counter = Counter()

    async def ask() -> None:
        async with listening(tmp_path / "s", counter):
            with connected(tmp_path / "s") as end:
                await asyncio.get_running_loop().sock_sendall(end, said)
                assert await sent_away(end)

    asyncio.run(ask())
    assert not counter.submitted


def test_who_waits_for_an_answer_stays(tmp_path: Path) -> None:
    counter = Counter()

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        async with listening(tmp_path / "s", counter):
            with connected(tmp_path / "s") as patient, connected(tmp_path / "s") as lazy:
                await loop.sock_sendall(patient, HEAD + b"abcd")
                await loop.sock_sendall(lazy, HEAD)
                assert await sent_away(lazy)  # and with it several looks have passed
                assert len(counter.submitted) == 1
                with pytest.raises(BlockingIOError):
                    patient.recv(1)

    asyncio.run(ask())


def test_a_user_has_a_part_of_all_connections_and_more_once_some_have_ended(tmp_path: Path) -> None:
    counter, held = Counter(), collections.Counter[int | None]()

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        async with listening(tmp_path / "s", counter, held=held, most_descriptors=4, patience_seconds=60.0):
            with connected(tmp_path / "s") as first:
                await loop.sock_sendall(first, HEAD + b"abcd")
                with connected(tmp_path / "s") as second:
                    assert await sent_away(second)
                with pytest.raises(BlockingIOError):
                    first.recv(1)
            await asyncio.to_thread(until, lambda: not held)
            with connected(tmp_path / "s") as third:
                await loop.sock_sendall(third, HEAD + b"abcd")
                await asyncio.to_thread(until, lambda: len(counter.submitted) == 2)

    asyncio.run(ask())


def test_all_users_together_leave_some_of_the_connections(tmp_path: Path) -> None:
    async def ask() -> None:
        held = collections.Counter[int | None]({None: 4, 1: 2, 2: 1})
        async with listening(tmp_path / "s", Counter(), held=held, most_descriptors=8, patience_seconds=60.0):
            with connected(tmp_path / "s") as one_more:
                assert await sent_away(one_more)

    asyncio.run(ask())


class Generous(Counter):
    """Answers each call at once with more than its client asked for."""

    hot_since_seconds = load_seconds = 0.0

    def submit(self, ticket: PendingRequest, body: Body, file: int | None, asker: ResponseSink) -> None:
        super().submit(ticket, body, file, asker)
        asker.reply(Reply(200, {}, b"x" * 1_000_000), None)

    def replica_of(self, _ticket: PendingRequest) -> Any:
        return self


def test_who_asks_again_and_again_and_reads_no_answer_is_not_answered_from_memory(tmp_path: Path) -> None:
    counter, waits = Generous(), asyncio.Event()

    async def ordinary(_scope: Any, _receive: Any, _send: Any) -> None:
        waits.set()
        await asyncio.get_running_loop().create_future()

    async def ask() -> None:
        async with listening(tmp_path / "s", counter, ordinary, patience_seconds=60.0):
            with connected(tmp_path / "s") as end:
                asking = asyncio.create_task(asyncio.get_running_loop().sock_sendall(end, (HEAD + b"abcd") * 1000))
                async with asyncio.timeout(60):
                    await waits.wait()
                asking.cancel()
        assert len(counter.submitted) <= 2

    asyncio.run(ask())


def test_who_takes_nothing_of_an_answer_is_sent_away(tmp_path: Path) -> None:
    async def ask() -> None:
        held = collections.Counter[int | None]()
        async with listening(tmp_path / "s", Generous(), held=held):
            with connected(tmp_path / "s") as end:
                await asyncio.get_running_loop().sock_sendall(end, HEAD + b"abcd")
                await asyncio.to_thread(until, lambda: held)
                await asyncio.to_thread(until, lambda: not held)

    asyncio.run(ask())
