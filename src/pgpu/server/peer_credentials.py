"""The user at the other end of a Unix socket, as the kernel reports it.

Credentials are read once for each connection: they are those at the time of `connect`, whatever the process does later.
Source: unix(7), SO_PEERCRED; socket(7), SO_PEERGROUPS.
"""

import array
import asyncio
import contextlib
import select
import socket
import struct
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from pgpu.errors import RequestError
from pgpu.server.responses import raw_error_response
from pgpu.structs import Struct

# Key of a request's `PeerCredentials` in its ASGI `state`; the value is None for TCP.
STATE_KEY = "peer"

# Key in the same `state` of a function without arguments: `has_hung_up` of the request's connection.
HANG_UP_KEY = "has_hung_up"

# Key in the same `state` of a function without arguments that closes the request's connection without sending what is buffered.
ABORT_KEY = "abort"

_SO_PEERGROUPS = 59

# The most that Python's getsockopt can return; a peer with more counts as one without groups.
_MOST_GROUPS = 256

_CREDENTIALS = struct.Struct("3i")


class PeerCredentials(Struct, frozen=True):
    """A process that connected."""

    pid: int
    """In this process's PID namespace; 0 if the peer is in another one."""

    uid: int
    gid: int
    groups: frozenset[int]
    """Its supplementary groups."""


def peer_of(connection: socket.socket) -> PeerCredentials | None:
    """Return the peer of a connection; None unless it is a Unix socket."""
    if connection.family != socket.AF_UNIX:
        return None
    pid, uid, gid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    groups = array.array("I")
    with contextlib.suppress(OSError):  # ERANGE: more groups than fit. ENOPROTOOPT: before Linux 4.13.
        groups.frombytes(connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_GROUPS * groups.itemsize))
    return PeerCredentials(pid, uid, gid, frozenset(groups))


def has_hung_up(connection: socket.socket) -> bool:
    """Whether the other side has closed; polls the kernel, since nothing reads from the connection meanwhile.

    Sources: poll(2), POLLRDHUP and POLLHUP; a connection that was closed here has no descriptor.
    """
    if connection.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


class PeerHttpProtocol(H11Protocol):
    """Uvicorn's HTTP connection with the peer in the state of each request, WebSockets included.

    It also limits the time for a request's head, which uvicorn does only between two requests of a connection.
    """

    head_seconds = 10.0
    """Time limit for the head of a request, from the connection or from the head's first bytes."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        connection = transport.get_extra_info("socket")
        # A new dict: uvicorn gives one and the same to all connections.
        self.app_state = {
            **self.app_state,
            STATE_KEY: peer_of(connection),
            HANG_UP_KEY: lambda: has_hung_up(connection),
            ABORT_KEY: transport.abort,
        }
        super().connection_made(transport)
        self._time_head()

    def handle_events(self) -> None:
        super().handle_events()
        self._time_head()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """See `H11Protocol`; another protocol handles the connection from here on."""
        super().handle_websocket_upgrade(event)
        self._is_upgraded = True

    _is_upgraded = False

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)

    def _time_head(self) -> None:
        # A head is due on a new connection and after each complete response; its timer is not extended by further
        # bytes, so a client cannot hold a connection by sending one byte at a time.
        is_head = not self._is_upgraded and (self.cycle is None or self.cycle.response_complete)
        if not is_head or self.transport.is_closing():
            self._cancel_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._time_out)

    def _cancel_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _time_out(self) -> None:
        self.transport.write(raw_error_response(408, RequestError("the request did not come in time")))
        self.transport.close()
