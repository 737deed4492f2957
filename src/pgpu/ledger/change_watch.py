"""Notification of commits across processes: each writer touches the database's file after a commit, and inotify wakes the readers.

An event of SQLite's own writes would come too early: the journal is written, and synced, before a commit is visible. A writer that
is killed between its commit and the touch wakes no reader; the next commit does. Each process needs one of the user's inotify
instances. Without one (`fs.inotify.max_user_instances`), a watch reports a possible change 20 times a second.

Source: inotify(7).
"""

import ctypes
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, Self, TypeVar

POLL_SECONDS = 0.05
"""Between two reports of a watch without inotify."""

T = TypeVar("T")

LONGEST_KEPT_SECONDS = 10.0
"""After this time a read is repeated even without a change."""

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

        self._watched = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def clear(self) -> bool:
        """Forget the changes until now, and return whether there may have been any; a read of the ledger must follow then."""
        if self.descriptor is None:
            return True
        # Added each time, which changes nothing for the same file: the ledger may have been replaced.
        before, self._watched = self._watched, self._libc.inotify_add_watch(self.descriptor, self._path, _IN_ATTRIB)
        try:
            return bool(os.read(self.descriptor, _MOST_EVENT_BYTES))
        except BlockingIOError:
            return self._watched != before or self._watched < 0

    def wait(self, timeout_seconds: float | None = None, beside: int | None = None) -> bool:
        """Block until the ledger may have changed since the last `clear`; False on timeout.

        Args:
            timeout_seconds: None for no limit.
            beside: A descriptor that ends the wait as well once it is readable.
        """
        if self.descriptor is None:
            threading.Event().wait(POLL_SECONDS if timeout_seconds is None else min(timeout_seconds, POLL_SECONDS))
            return timeout_seconds is None or timeout_seconds >= POLL_SECONDS
        poll = select.poll()
        for descriptor in (self.descriptor, beside):
            if descriptor is not None:
                poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(None if timeout_seconds is None else timeout_seconds * 1000))

    def close(self) -> None:
        """Stop."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class CommitCounter:
    """Counts the commits of all processes to one ledger, several at once as one; used by many threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._guard = threading.Lock()
        self._watch: ChangeWatch | None = None
        self._count = 0

    def count(self) -> int:
        """Return a number that has risen if a process has committed since the last call."""
        with self._guard:
            self._watch = self._watch or ChangeWatch(self._path)
            self._count += self._watch.clear()
            return self._count

    def close(self) -> None:
        """Stop; the next call begins again."""
        with self._guard:
            if self._watch is not None:
                self._watch.close()
                self._watch = None


class CachedRead(Generic[T]):
    """The result of a read of the ledger, for work that is repeated each second while the ledger seldom changes."""

    def __init__(self, commits: CommitCounter, read: Callable[[], T]) -> None:
        self._commits = commits
        self._read = read
        self._kept: tuple[int, float, T] | None = None

    def get(self) -> T:
        """Return the result; read only after a commit of any process, or after `LONGEST_KEPT_SECONDS`."""
        # Before the read: a commit between the two is read, and once more in the next call.
        count, now_seconds = self._commits.count(), time.monotonic()
        if self._kept is None or self._kept[0] != count or now_seconds > self._kept[1] + LONGEST_KEPT_SECONDS:
            self._kept = count, now_seconds, self._read()
        return self._kept[2]
