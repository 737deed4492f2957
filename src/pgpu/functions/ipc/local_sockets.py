"""Sockets of this machine: Unix sockets that only their own user can open, the user at the other end, HOST:PORT as text."""

import os
import socket
import struct
from pathlib import Path

_OTHERS = 0o077
_CREDENTIALS = struct.Struct("3i")


def listening_socket(path: Path, backlog: int) -> socket.socket:
    """Listen at a path, replacing a file that is there; independent of the mode of the directory.

    Sets the umask of the process for a moment: no other thread may create files meanwhile.
    """
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    # bind() applies the umask: a later chmod would leave a moment in which other users can connect.
    before = os.umask(_OTHERS)
    try:
        listening.bind(os.fspath(path))
    finally:
        os.umask(before)
    listening.listen(backlog)
    return listening


def peer_uid(end: socket.socket) -> int | None:
    """Return the user at the other end of a Unix socket, at the time of its `connect` or `listen`; None over TCP.

    Source: unix(7), SO_PEERCRED.
    """
    if end.family != socket.AF_UNIX:
        return None
    uid: int
    _, uid, _ = _CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return uid


def check_peer_owner(end: socket.socket, directory: Path) -> None:
    """Check that the listener of a socket is the owner of the directory that the socket is in.

    The owner can place a symbolic link in the directory, to another user's replica or to a service of root's. The gateway
    may connect to all of them and would send calls there, so the kernel's credentials of the listener decide, not the path.

    Raises:
        PermissionError: Another user listens.
        OSError: The directory does not exist any more.
    """
    uid = peer_uid(end)
    owner_uid = os.lstat(directory).st_uid
    if uid != owner_uid:
        raise PermissionError(f"user {uid} answers at a socket of user {owner_uid}")


def parse_address(text: str) -> tuple[str, int]:
    """Parse `HOST:PORT` or `[IPV6]:PORT`, for argparse: an invalid port raises ValueError."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
