"""Unix sockets at paths of any length.

The kernel's limit is 107 bytes, and a runtime directory may be longer. Then the directory is opened and the socket is addressed
through /proc/self/fd.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket


_MOST_BYTES = 107


def wait_readable(timeout_seconds: float | None, *descriptors: int | None) -> set[int]:
    """Wait until one of these is readable, None for no limit, and return those that are.

    By poll(2): select(2) takes no descriptor above 1023, and an agent may have many.
    """
    import select  # noqa: PLC0415 - commands that read the ledger need none

    poll = select.poll()
    for each in descriptors:
        if each is not None:
            poll.register(each, select.POLLIN)
    return {found for found, _ in poll.poll(None if timeout_seconds is None else timeout_seconds * 1000)}


@contextmanager
def _short(path: Path) -> Iterator[str]:
    name = os.fspath(path)
    if len(name) <= _MOST_BYTES and name.isascii():
        yield name
        return
    # O_PATH needs no permission to read the directory, and opens nothing in it.
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def bind(kind: int, path: Path) -> "socket.socket":
    """Return a non-blocking socket at `path`; replaces one that a dead process left there."""
    import socket  # noqa: PLC0415 - commands that read the ledger need none

    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
    with _short(path) as name:
        bound.bind(name)
    return bound


def connect(path: Path) -> "socket.socket":
    """Return a blocking stream socket connected to `path`.

    Raises:
        OSError: No process listens there.
    """
    import socket  # noqa: PLC0415 - likewise

    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as name:
            connected.connect(name)
    except BaseException:  # Ctrl-C too: the socket is not returned, so it must be closed here.
        connected.close()
        raise
    return connected


def send_datagram(path: Path, message: bytes, timeout_seconds: float = 0.0) -> bool:
    """Send one datagram, waiting at most so long while the receiver's queue is full; False if no process listens there."""
    import socket  # noqa: PLC0415 - likewise

    # Most jobs of a long queue have none, and a socket costs more than this look-up.
    if not os.path.exists(path):  # noqa: PTH110 - for each message
        return False
    try:
        with _short(path) as name, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(timeout_seconds)
            sender.sendto(message, name)
    except (BlockingIOError, TimeoutError):
        return True  # The receiver's queue is full of messages that it will read.
    except OSError:
        return False
    return True
