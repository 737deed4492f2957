"""Who is let in at a server's door: bounds for each, a reserve for administrators, and patience where nothing is left."""

import asyncio
import errno
import logging
import os
import socket

import pytest
import uvicorn
from uvicorn.server import ServerState

from pgpu.errors import NodeError
from pgpu.server.connection_limits import (
    ConnectionAcceptor,
    ConnectionCounter,
    ConnectionLimits,
    client_key,
    limits_for,
)
from pgpu.server.peer_credentials import PeerHttpProtocol

ROOM = ConnectionLimits(most_each=2, most=3, reserve=1)


class Exhausted(socket.socket):
    """A listening socket in a process that has no descriptor left for some time."""

    refusals = 0
    asked = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.asked += 1
        if self.asked <= self.refusals:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


class Answering(asyncio.Protocol):
    """Says `in` to whoever was let in."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(b"in")


def test_one_user_is_refused_past_their_bound_and_let_in_again_once_they_left() -> None:
    visitors = ConnectionCounter(ROOM)
    visitors.enter("alice", is_admin=False)
    visitors.enter("alice", is_admin=False)
    with pytest.raises(NodeError, match="2 connections"):
        visitors.enter("alice", is_admin=False)
    visitors.leave("alice")
    visitors.enter("alice", is_admin=False)


def test_where_users_fill_all_there_is_the_administrator_comes_in_still() -> None:
    visitors = ConnectionCounter(ROOM)
    for name in ("alice", "bob", "carol"):
        visitors.enter(name, is_admin=False)
    with pytest.raises(NodeError, match="no room"):
        visitors.enter("dave", is_admin=False)
    visitors.enter(0, is_admin=True)
    with pytest.raises(NodeError, match="no room"):
        visitors.enter(0, is_admin=True)


def test_who_comes_over_tcp_leaves_half_of_the_room_to_this_machines_users() -> None:
    visitors = ConnectionCounter(ConnectionLimits(most_each=2, most=8, reserve=1))
    for number in range(4):
        visitors.enter(f"10.0.0.{number}", is_admin=False, is_remote=True)
    with pytest.raises(NodeError, match="no room"):
        visitors.enter("10.0.1.1", is_admin=False, is_remote=True)
    for name in ("alice", "bob", "carol", "dave"):
        visitors.enter(name, is_admin=False)
    visitors.leave("10.0.0.0", is_remote=True)
    visitors.enter("10.0.1.1", is_admin=False, is_remote=True)


def test_no_address_takes_more_than_half_of_what_tcp_has() -> None:
    visitors = ConnectionCounter(ConnectionLimits(most_each=100, most=8, reserve=1))
    visitors.enter("10.0.0.1", is_admin=False, is_remote=True)
    visitors.enter("10.0.0.1", is_admin=False, is_remote=True)
    with pytest.raises(NodeError, match="2 connections"):
        visitors.enter("10.0.0.1", is_admin=False, is_remote=True)
    visitors.enter("10.0.0.2", is_admin=False, is_remote=True)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("127.0.0.1", "127.8.9.10", True),
        ("127.0.0.1", "::1", True),
        ("127.0.0.1", "::ffff:127.0.0.2", True),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::2", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
    ],
)
def test_an_address_that_one_machine_can_choose_anew_is_one_visitor(one: str, other: str, is_same: bool) -> None:
    assert (client_key(one) == client_key(other)) is is_same


def test_a_process_that_may_open_any_number_of_descriptors_has_a_bound_still() -> None:
    room = limits_for(1 << 30, 256)
    assert room.most + room.reserve == 4096


@pytest.mark.parametrize("descriptors", [64, 256, 1024, 4096, 1 << 20])
def test_no_user_can_take_more_than_half_and_all_fit_into_the_descriptors_there_are(descriptors: int) -> None:
    room = limits_for(descriptors, 256)
    assert 1 <= room.most_each <= min(256, room.most // 2)
    assert room.reserve >= 1
    if descriptors >= 1024:
        assert 2 * (room.most + room.reserve) + 256 <= descriptors


def listening(kind: type[socket.socket]) -> socket.socket:
    made = kind(socket.AF_UNIX)
    made.bind(f"\0pgpu-entrance-{os.getpid()}-{id(made)}")
    made.listen()
    return made


def test_where_no_descriptor_is_left_callers_wait_outside_and_the_log_has_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, "uvicorn.error")
    listener = listening(Exhausted)
    assert isinstance(listener, Exhausted)
    listener.refusals = 2

    async def call() -> bytes:
        entrance = ConnectionAcceptor(listener, ConnectionCounter(ROOM), Answering)
        reader, writer = await asyncio.open_unix_connection(listener.getsockname())
        said = await reader.read(16)
        writer.close()
        entrance.close()
        return said

    assert asyncio.run(call()) == b"in"
    assert listener.asked <= listener.refusals + 3
    assert len(caplog.records) == 1
    assert "Too many open files" in caplog.text


def test_a_crowd_on_loopback_is_one_visitor_and_leaves_the_unix_socket_open() -> None:
    async def call() -> tuple[list[bytes], bytes]:
        visitors = ConnectionCounter(ConnectionLimits(most_each=4, most=8, reserve=1))
        near, far = listening(socket.socket), socket.create_server(("127.0.0.1", 0))
        entrances = [ConnectionAcceptor(listener, visitors, Answering) for listener in (near, far)]
        addresses = [f"127.0.0.{number}" for number in range(1, 5)]
        held = [await asyncio.open_connection(*far.getsockname(), local_addr=(each, 0)) for each in addresses]
        crowd = [await reader.read(12) for reader, _ in held]
        reader, writer = await asyncio.open_unix_connection(near.getsockname())
        beside = await reader.read(12)
        for each in (writer, *(writer for _, writer in held)):
            each.close()
        async with asyncio.timeout(60):
            while await said_at(far) != b"in":
                pass
        for entrance in entrances:
            entrance.close()
        return crowd, beside

    crowd, beside = asyncio.run(call())
    assert sorted(crowd) == [b"HTTP/1.1 503", b"HTTP/1.1 503", b"in", b"in"]
    assert beside == b"in"


async def said_at(listener: socket.socket) -> bytes:
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    said = await reader.read(12)
    writer.close()
    return said


class Hasty(PeerHttpProtocol):
    """Waits for no head of a request as long as a server does."""

    head_seconds = 0.05


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HT"])
def test_who_never_says_what_they_want_is_hung_up_on(begun: bytes) -> None:
    async def answer(_scope: object, _receive: object, send: object) -> None:
        assert callable(send)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def call() -> bytes:
        listener = listening(socket.socket)
        configuration = uvicorn.Config(answer, log_level="warning", ws="none")
        configuration.load()
        visitors = ConnectionCounter(ROOM)
        entrance = ConnectionAcceptor(listener, visitors, lambda: Hasty(configuration, ServerState(), {}))
        reader, writer = await asyncio.open_unix_connection(listener.getsockname())
        writer.write(begun)
        said = await reader.read()
        writer.close()
        entrance.close()
        return said

    assert b"408" in asyncio.run(call())
