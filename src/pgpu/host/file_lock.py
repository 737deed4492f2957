"""Locks between processes: `flock` on a file. The kernel releases a lock when its holder's descriptor closes or the holder dies."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def open_lock_file(path: Path, directory_mode: int = 0o700) -> int:
    """Return a descriptor of a lock file, made with its directories where they are missing; nothing is locked yet.

    Raises:
        OSError: It cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(mode=directory_mode, parents=True, exist_ok=True)
        return os.open(path, flags, 0o600)


def try_flock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Take a lock without waiting; False if another open file description holds one that excludes it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def exclusive_flock(descriptor: int) -> Iterator[None]:
    """Wait for the exclusive lock and hold it for the block; closes the descriptor at the end."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def try_lock(path: Path) -> int | None:
    """Return a descriptor that holds the exclusive lock of a file; None if another process holds it.

    Also None if the file cannot be made: other parts of the engine then fail on the same directory with a message.
    """
    try:
        descriptor = open_lock_file(path)
    except OSError:
        return None
    if try_flock(descriptor):
        return descriptor
    os.close(descriptor)
    return None
