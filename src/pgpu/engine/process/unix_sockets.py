"""Unix sockets at paths of any length.

The kernel takes 107 bytes of path and a runtime directory may be longer, so the directory is opened and the socket is
named through /proc/self/fd.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def _short(path: Path) -> Iterator[str]:
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def bind(kind: int, path: Path) -> socket.socket:
    """Return a non-blocking socket at `path`, in the place of one that a dead process left there."""
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
    with _short(path) as name:
        bound.bind(name)
    return bound


def connect(path: Path) -> socket.socket:
    """Return a blocking stream socket connected to `path`.

    Raises:
        OSError: Nobody listens there.
    """
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as name:
            connected.connect(name)
    except BaseException:  # Nobody gets the socket, so nobody else could close it; also after Ctrl-C.
        connected.close()
        raise
    return connected


def send_datagram(path: Path, message: bytes) -> bool:
    """Send one datagram without waiting; False if nobody listens there."""
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    with sender:
        try:
            with _short(path) as name:
                sender.sendto(message, name)
        except BlockingIOError:
            return True  # Its queue is full of wake-ups: it will wake.
        except OSError:
            return False
    return True
