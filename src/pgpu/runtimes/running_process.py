"""A running job as a process of this machine: watched by its pidfd, signalled and killed.

An exit code that cannot be determined stays None.
"""

import contextlib
import fcntl
import os
import signal
import struct
import termios
import time
from collections.abc import Iterable
from pathlib import Path

from pgpu.errors import PgpuBug, RuntimeUnavailableError
from pgpu.host.process_identity import has_ended, identify_unreaped
from pgpu.host.thread_turns import pause
from pgpu.model import ProcessHolder
from pgpu.runtimes import LauncherParent
from pgpu.runtimes.cgroups import enter_leaf, kill_leaf, remove_leaf
from pgpu.runtimes.lineage import Lineage

_SIGNAL_EXIT_BASE = 128
_KILL_ROUND_SECONDS = 0.2


class RunningProcess:
    """The `RunningJob` of the process runtime."""

    kill_deadline_seconds = 10.0
    """Time for the job's processes to end after SIGKILL."""

    def __init__(
        self,
        holder: ProcessHolder,
        lineage: Lineage,
        pidfd: int | None,
        terminal: Path | None,
        monitor: LauncherParent | None = None,
    ) -> None:
        """Attach to a process.

        Args:
            holder: The process.
            lineage: Determines which processes are part of the job.
            pidfd: Of that process; closed by `close`. None if it has ended.
            terminal: Path of its terminal; None without one.
            monitor: Its parent; None if this process is.
        """
        self._holder = holder
        self._lineage = lineage
        self._pidfd = pidfd
        self._terminal = terminal
        self._monitor = monitor
        self._exit_code: int | None = None
        self._leaf: Path | None = None

    def enter_leaf(self) -> Path:
        """Move the main process, which is held back, into a control group of its own.

        Raises:
            RuntimeUnavailableError: None can be created here.
        """
        self._leaf = enter_leaf(self._holder.pid, self._lineage.job_id)
        return self._leaf

    @property
    def holder(self) -> ProcessHolder:
        return self._holder

    def fileno(self) -> int:
        """Return a descriptor that polls readable once the main process has ended."""
        if self._monitor is not None:
            return self._monitor.end_event
        if self._pidfd is None:
            raise PgpuBug("a process without a parent here was adopted after its end")
        return self._pidfd

    def exit_code(self) -> int | None:
        """Return 0–255 (128 + signal for a signal) after the end; None while it runs, and for an adopted job."""
        if self._exit_code is None and self._pidfd is not None:
            self._exit_code = _reap(self._pidfd)
        if self._exit_code is None and self._monitor is not None:
            self._exit_code = self._monitor.exit_code(self._holder, self._pidfd)
        return self._exit_code

    def is_alive(self) -> bool:
        """True while the main process runs."""
        # A pidfd is readable as soon as the process is a zombie, whether or not it has been reaped.
        return self._pidfd is not None and not has_ended(self._pidfd)

    def owns(self, pid: int) -> bool:
        """True if this process has a mark of the job."""
        return self._lineage.owns(pid)

    def signal(self, number: int) -> None:
        """Send a signal to the main process; no effect if it has ended."""
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """End the main process and all processes that it started, including daemons.

        Raises:
            RuntimeUnavailableError: A process is still there after 10 s, such as one that is blocked in the kernel.
        """
        # The leaf is killed at once by the kernel; processes that left it, and jobs without one, are found by their marks.
        if self._leaf is not None:
            kill_leaf(self._leaf)
        self.signal(signal.SIGKILL)
        if (
            self._pidfd is not None
        ):  # Most jobs have no more processes: one pass over /proc then finds that none is left.
            _wait_until_ended([self._pidfd], _KILL_ROUND_SECONDS)
        deadline = time.monotonic() + self.kill_deadline_seconds
        # Repeated: a process may fork between the scan and the kill.
        while members := self._lineage.members():
            if time.monotonic() > deadline:
                raise RuntimeUnavailableError(f"these processes of the job do not end: {sorted(members)}")
            _kill_and_wait(members, self._lineage)
        if self._pidfd is not None:
            _wait_until_ended([self._pidfd], self.kill_deadline_seconds)

    def resize_terminal(self, size: os.terminal_size) -> None:
        """Set the terminal size in characters."""
        if self._terminal is None:
            return
        with contextlib.suppress(OSError):
            # Open only briefly: while the slave side is open here, the master side gets no hang-up when the job closes it.
            terminal = os.open(self._terminal, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
            try:
                # The kernel then sends SIGWINCH to the terminal's foreground process group.
                fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size.lines, size.columns, 0, 0))
            finally:
                os.close(terminal)

    def close(self) -> None:
        """Release the descriptors; a running job continues."""
        if self._leaf is not None:
            # Fails without effect while the job runs, which so keeps its limits.
            remove_leaf(self._leaf)
        if self._pidfd is not None:
            _reap(self._pidfd)  # a child that has ended, and whose exit code nobody has read, would stay a zombie
            os.close(self._pidfd)
            self._pidfd = None
        self._lineage.close()


def _reap(pidfd: int) -> int | None:
    try:
        # P_PIDFD reaps a child only; for an adopted job waitid fails with ECHILD.
        result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return None
    if result is None:
        return None
    if result.si_code == os.CLD_EXITED:
        return result.si_status
    return _SIGNAL_EXIT_BASE + result.si_status


def _wait_until_ended(pidfds: Iterable[int], timeout_seconds: float) -> None:
    """Wait until all of these have ended, but not longer."""
    deadline = time.monotonic() + timeout_seconds
    with pause():
        for pidfd in pidfds:
            has_ended(pidfd, max(0.0, deadline - time.monotonic()))


def _kill_and_wait(pids: Iterable[int], lineage: Lineage) -> None:
    """Kill these processes and wait briefly for their ends; PIDs are checked after their pidfds are open, since PIDs are reused."""
    with contextlib.ExitStack() as stack:
        pidfds = []
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                pidfd = os.pidfd_open(pid)
                stack.callback(os.close, pidfd)
                if lineage.owns(pid):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    pidfds.append(pidfd)
        _wait_until_ended(pidfds, _KILL_ROUND_SECONDS)


def open_process(holder: ProcessHolder) -> int | None:
    """Return a pidfd of exactly this process; None if it is gone."""
    try:
        pidfd = os.pidfd_open(holder.pid)
    except ProcessLookupError:
        return None
    # Compared after the pidfd is open: from then on the PID cannot be reused unnoticed.
    if identify_unreaped(holder.pid) != holder:
        os.close(pidfd)
        return None
    return pidfd
