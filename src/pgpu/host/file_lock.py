"""Work that exactly one process does: whoever holds a lock, which dies with its holder."""

import fcntl
import os
from pathlib import Path


def try_lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock; None where somebody else does.

    Where no lock can be made nothing else works either, and says so.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
