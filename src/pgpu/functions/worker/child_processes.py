"""Whose processes these are: nothing that a handler started outlives what stands for it.

A worker dies with its zygote and that ends with its front. What a worker started itself falls to its zygote when it dies, and
to the front when that does, however it detached itself; they end it, or its memory on the GPU would be the next worker's
want. Only while a module is imported, what that started outlives a front that is killed. It refuses to look for processes by name: only children are ours.
"""

import contextlib
import ctypes
import os
import select
import signal
from collections.abc import Collection
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_MOST_ROUNDS = 8
"""Of those that are ended each may leave children of its own; deeper families are not hunted."""

_SCORE = "100"
"""Of a thousandth of the memory that there is, each; enough to stand before a front, too little to stand before everybody."""

_PATIENCE_SECONDS = 0.05
"""For one round: SIGKILL takes a moment, and one who waits longer than that holds up who is served."""


def die_with_parent(parent_pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent dies, also if that happened just now."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), number)


def live_without_parent() -> None:
    """Take back `die_with_parent`."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, 0)


def prefer_oom_kill() -> None:
    """Have the kernel end this worker before its front where memory runs out: a worker is replaced, and its caller told."""
    with contextlib.suppress(OSError):  # it stands higher already
        Path("/proc/self/oom_score_adj").write_text(_SCORE, "ascii")


def adopt_orphans() -> None:
    """Become the parent of whatever descendants leave behind."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """Return this process's children, zombies too; none where the kernel does not tell (CONFIG_PROC_CHILDREN)."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended, or no such file
            found.update(map(int, (task / "children").read_text().split()))
    return found


def end_children(spared: Collection[int] = ()) -> None:
    """Kill and reap this process's children, and what those leave behind."""
    for _ in range(_MOST_ROUNDS):
        doomed = children() - {*spared}
        if not doomed:
            return
        for pid in doomed:
            _end(pid)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):  # reaped by somebody else meanwhile
        pidfd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [], _PATIENCE_SECONDS)
            os.waitpid(pid, os.WNOHANG)
        finally:
            os.close(pidfd)
