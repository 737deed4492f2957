"""Remove a test's directory with everything that still works in it: processes, mounts, then files.

The thread of a job outlives it by a moment, and the agent its queue: files that they write after their directory
was removed would stay for good, and so would a tmpfs that they had no time to unmount. Nothing is asserted here: what pgpu
leaves behind is the subject of tests, which check it before this runs.
"""

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.waiting import until

from pgpu.tmpfs import unmount


def clear(directory: Path) -> None:
    """Kill all processes with a directory on their command line, unmount what lies below it, and remove it."""
    kill_at_work(directory)
    unmount_below(directory)
    shutil.rmtree(directory, ignore_errors=True)


def kill_at_work(directory: Path) -> None:
    """Kill all processes with a directory on their command line, and wait until none is left."""

    def is_empty() -> bool:
        found = list(_at_work(directory))
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not found

    # Each look kills again: a process that was listed may have forked before the signal reached it.
    until(is_empty)


def _at_work(directory: Path) -> Iterator[int]:
    word = os.fsencode(directory)
    for name in os.listdir("/proc"):  # noqa: PTH208 - all processes, after every test
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:  # noqa: PTH123 - likewise
                if word in file.read():
                    yield int(name)


def unmount_below(directory: Path) -> None:
    """Unmount what lies below a directory, the deepest first."""
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    points = [line.split(" ")[1] for line in lines]
    for point in sorted((point for point in points if point.startswith(f"{directory}/")), key=len, reverse=True):
        unmount(point)
