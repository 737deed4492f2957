"""Calls after other processes have written to files, by one inotify instance for all of them.

Only writes by system calls are reported, not those to a mapping. A file is watched for one write, and again `PAUSE_SECONDS` later, when
the call is made once more for what was written meanwhile. So a process that writes all the time causes 40 calls a second.

Source: inotify(7).
"""

import ctypes
import os
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from pgpu.engine.event_loop import READABLE, EventLoop

PAUSE_SECONDS = 0.05

_IN_MODIFY = 0x00000002
_IN_IGNORED = 0x00008000
_IN_ONESHOT = 0x80000000
_EVENT = struct.Struct("iIII")
_MOST_EVENT_BYTES = 1 << 16


class WriteWatch:
    """The watched files of one event loop. Without an inotify instance nothing is called: users find what was written by themselves."""

    def __init__(self, loop: EventLoop) -> None:
        """Watch no file yet.

        Args:
            loop: Makes the calls.
        """
        self._loop = loop
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._guard = threading.Lock()
        self._calls: dict[Path, Callable[[], None]] = {}
        self._paths: dict[int, Path] = {}
        """By the number of a watch."""

        if self._descriptor >= 0:
            loop.watch(self._descriptor, READABLE, lambda _: self._read())

    def add(self, path: Path, call: Callable[[], None]) -> None:
        """Make a call after each write to a file from now on; from any thread."""
        with self._guard:
            self._calls[path] = call
            self._watch(path)

    def remove(self, path: Path) -> None:
        """Make no more calls for a file; from any thread. One that has begun may still run."""
        with self._guard:
            self._calls.pop(path, None)

    def close(self) -> None:
        """Stop."""
        if self._descriptor >= 0:
            self._loop.forget(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _watch(self, path: Path) -> None:
        if self._descriptor >= 0 and path in self._calls:
            mask = ctypes.c_uint32(_IN_MODIFY | _IN_ONESHOT)
            number = self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), mask)
            if number >= 0:
                self._paths[number] = path

    def _read(self) -> None:
        with suppress(BlockingIOError):
            for number, mask, _, _ in _EVENT.iter_unpack(os.read(self._descriptor, _MOST_EVENT_BYTES)):
                with self._guard:
                    path = self._paths.pop(number, None)
                if path is not None and not mask & _IN_IGNORED:  # else the file is gone
                    self._call(path)
                    self._loop.call_later(PAUSE_SECONDS, partial(self._watch_again, path))

    def _watch_again(self, path: Path) -> None:
        with self._guard:
            self._watch(path)
        self._call(path)

    def _call(self, path: Path) -> None:
        with self._guard:
            call = self._calls.get(path)
        if call is not None:
            call()
