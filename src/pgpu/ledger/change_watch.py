"""Notification of commits across processes: each writer touches the database's file after a commit, and inotify wakes the readers.

An event of SQLite's own writes would come too early: the journal is written, and synced, before a commit is visible. A writer that
is killed between its commit and the touch wakes nobody; the next commit does. Each process needs one of the user's inotify
instances. Without one (`fs.inotify.max_user_instances`), a watch reports a possible change 20 times a second.

Source: inotify(7).
"""

import ctypes
import os
import select
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

POLL_SECONDS = 0.05
"""Between two reports of a watch without inotify."""

_IN_ATTRIB = 0x00000004
_IN_NONBLOCK, _IN_CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC
_MOST_EVENT_BYTES = 4096


def announce_change(path: Path) -> None:
    """Wake all watches of a database; called after a commit that changed it."""
    with suppress(OSError):  # The ledger was removed, or its file system is full: the commit is there nevertheless.
        os.utime(path)


class ChangeWatch:
    """Wakes one thread or event loop after commits of any process to one ledger."""

    def __init__(self, path: Path) -> None:
        """Begin to watch; changes before the first `clear` may be missed.

        Args:
            path: Of the database, which may not exist yet.
        """
        self._path = os.fsencode(path)
        self._libc = ctypes.CDLL(None, use_errno=True)
        found = self._libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC)
        self.descriptor: int | None = None if found < 0 else found
        """Polls readable after a change; None without inotify."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def clear(self) -> None:
        """Forget the changes until now; a read of the ledger must follow, and finds them."""
        if self.descriptor is not None:
            # Added each time, which changes nothing for the same file: the ledger may have been replaced.
            self._libc.inotify_add_watch(self.descriptor, self._path, _IN_ATTRIB)
            with suppress(BlockingIOError):
                os.read(self.descriptor, _MOST_EVENT_BYTES)

    def wait(self, timeout_seconds: float) -> bool:
        """Block until the ledger may have changed since the last `clear`; False on timeout."""
        if self.descriptor is None:
            threading.Event().wait(min(timeout_seconds, POLL_SECONDS))
            return timeout_seconds >= POLL_SECONDS
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        return bool(poll.poll(timeout_seconds * 1000))

    def close(self) -> None:
        """Stop."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None
