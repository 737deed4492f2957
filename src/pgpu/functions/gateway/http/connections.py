"""A gateway's connections: who is at the other end of a Unix socket is asked once, when it is made.

It refuses to believe anything else about a user: over TCP there are only tokens.
"""

import asyncio
import socket
import struct
from typing import Any

from pgpu.functions.front.http.connections import Connection

_CREDENTIALS = struct.Struct("3i")


class GatewayConnection(Connection):
    """A connection whose requests know their user."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Note who it is."""
        super().connection_made(transport)
        self.app_state: dict[str, Any] = {**self.app_state, "uid": uid_of(transport.get_extra_info("socket"))}


def uid_of(end: socket.socket) -> int | None:
    """Return the user at the other end of a Unix socket, of the moment of its `connect`; None over TCP."""
    if end.family != socket.AF_UNIX:
        return None
    uid: int
    _, uid, _ = _CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return uid
