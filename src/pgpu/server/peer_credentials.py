"""Who is on the other side of a Unix socket, in the kernel's own words.

A peer is read once, when its connection is made: the credentials are those of the moment of its `connect`, whatever the
process becomes later. This module refuses to trust anything that a client says. Source: unix(7), SO_PEERCRED;
socket(7), SO_PEERGROUPS.
"""

import array
import asyncio
import contextlib
import select
import socket
import struct
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from pgpu.errors import RequestError
from pgpu.server.responses import raw_error_response

STATE_KEY = "peer"
"""Where a request's ASGI `state` holds its `Peer`; None for what came over TCP."""

HANG_UP_KEY = "has_hung_up"
"""Where the same `state` holds a function without arguments: `has_hung_up` of the request's connection."""

_SO_PEERGROUPS = 59
_MOST_GROUPS = 256
"""As many as Python's getsockopt can take; of a peer with more none is believed."""

_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Peer:
    """A process that connected."""

    pid: int
    """As this process's PID namespace sees it; 0 where it is in another one."""

    uid: int
    gid: int
    groups: frozenset[int]
    """Its supplementary groups."""


def peer_of(connection: socket.socket) -> Peer | None:
    """Return who is connected; None unless it is a Unix socket."""
    if connection.family != socket.AF_UNIX:
        return None
    pid, uid, gid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(pid, uid, gid, _groups(connection))


def _groups(connection: socket.socket) -> frozenset[int]:
    groups = array.array("I")
    with contextlib.suppress(OSError):
        groups.frombytes(connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_GROUPS * groups.itemsize))
    return frozenset(groups)


def has_hung_up(connection: socket.socket) -> bool:
    """Whether the other side sends nothing more; asked of the kernel, since who stopped reading is not told.

    Sources: poll(2), POLLRDHUP and POLLHUP; a connection that was closed here has no descriptor.
    """
    if connection.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


class PeerHttpProtocol(H11Protocol):
    """Uvicorn's HTTP connection that tells each of its requests, WebSockets included, who its peer is.

    A peer that does not say what it wants is hung up on: uvicorn minds only those that say nothing after an answer.
    """

    head_seconds = 10.0
    """How long the head of a request may take, counted from the connection or from the head's first bytes."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`."""
        connection = transport.get_extra_info("socket")
        self.app_state = {
            **self.app_state,
            STATE_KEY: peer_of(connection),
            HANG_UP_KEY: lambda: has_hung_up(connection),
        }
        super().connection_made(transport)
        self._mind_head()

    def handle_events(self) -> None:
        """See `H11Protocol`."""
        super().handle_events()
        self._mind_head()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """See `H11Protocol`; another protocol has the connection from here on."""
        super().handle_websocket_upgrade(event)
        self._is_upgraded = True

    _is_upgraded = False

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._forget_head()
        super().connection_lost(exc)

    def _mind_head(self) -> None:
        is_asking = not self._is_upgraded and (self.cycle is None or self.cycle.response_complete)
        if not is_asking or self.transport.is_closing():
            self._forget_head()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._hang_up)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _hang_up(self) -> None:
        self.transport.write(raw_error_response(408, RequestError("the request did not come in time")))
        self.transport.close()
