"""Where the replicas of a session have their sockets: a directory that is gone with the session, or with the next one.

A session that is killed removes nothing; a lock that the kernel drops says that nobody is in what it left. It refuses to look at
what it cannot open: that is another user's.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pgpu.host.file_lock import try_flock

_PREFIX = "pgpu-dev-"
"""Short, as all of the path: a socket's has 107 bytes at most."""


@contextmanager
def session_directory(place: Path | None = None) -> Iterator[Path]:
    """Make a directory and hold it; remove those that nobody holds any more.

    Args:
        place: Where such directories lie; None: where temporary files do.
    """
    place = place or Path(tempfile.gettempdir())
    for each in place.glob(f"{_PREFIX}*"):
        _remove_if_left(each)
    made, lock = _made(place)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(lock)


def _made(place: Path) -> tuple[Path, int]:
    """Make one, and another one if somebody took it for left before it was locked."""
    while True:
        made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if made.exists():
            return made, lock
        os.close(lock)


def _remove_if_left(directory: Path) -> None:
    with contextlib.suppress(OSError):  # another user's, one that is held, or one that has just gone
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if try_flock(lock):
                shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(lock)
