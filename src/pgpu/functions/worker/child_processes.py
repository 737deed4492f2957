"""Child processes of a function: nothing that a handler started outlives its worker, zygote or replica.

A worker dies with its zygote, and the zygote exits with its replica. Processes that a worker started are reparented to the
zygote when the worker dies, and to the replica when the zygote dies, even if they detached themselves; both kill them, since
they may hold GPU memory that the next worker needs. One exception: while a module is imported, processes that it started
survive a replica that is killed. Processes are found as children of this process, never by name.
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
"""Each killed process may leave children of its own, which the next round kills; deeper trees are not followed."""

_OOM_SCORE = "100"
"""`oom_score_adj`, in thousandths of the memory: above the replica's, so that the kernel kills the worker first, and not above everything else."""

_KILL_SECONDS = 0.05
"""Wait for the effect of one SIGKILL; a longer wait would delay the next worker."""


def die_with_parent(parent_pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent dies, also if the parent is dead already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    # The parent died before prctl(): the kernel will not send the signal any more.
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), number)


def live_without_parent() -> None:
    """Undo `die_with_parent`."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, 0)


def prefer_oom_kill() -> None:
    """Have the kernel's OOM killer choose this worker before its replica, which replaces it and answers its callers."""
    with contextlib.suppress(OSError):  # the score is higher already
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, "ascii")


def adopt_orphans() -> None:
    """Make this process the new parent of orphaned descendants (child subreaper)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """Return this process's children, zombies included; empty on kernels without CONFIG_PROC_CHILDREN."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended, or the file does not exist
            found.update(map(int, (task / "children").read_text().split()))
    return found


def end_children(spared: Collection[int] = ()) -> None:
    """Kill and reap this process's children, and the orphans that they leave."""
    for _ in range(_MOST_ROUNDS):
        doomed = children() - {*spared}
        if not doomed:
            return
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # reaped elsewhere meanwhile
                pidfd = os.pidfd_open(pid)
                try:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    # The pidfd is readable once the process is dead; a process in uninterruptible sleep stays for a later round.
                    select.select([pidfd], [], [], _KILL_SECONDS)
                    os.waitpid(pid, os.WNOHANG)
                finally:
                    os.close(pidfd)
