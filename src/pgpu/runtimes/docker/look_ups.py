"""Runs the stager, and ends one that hangs: a file system of the user may keep whoever looks into it waiting for ever.

Who waits is a thread of the server, and there are few. So a user may have but a few look-ups that take long; the others are
ended at once. It refuses to know what a look-up is for.
"""

import contextlib
import errno
import os
import select
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence

from pgpu.libraries import STAGER, library_path
from pgpu.runtimes.launching import spawn

_QUICK_SECONDS = 0.5
"""So long any look-up may take; local file systems take a thousandth of it."""

_DEADLINE_SECONDS = 10.0
"""For looking up a few paths; a network file system that sleeps takes seconds."""

_MOST_SLOW_OF_A_USER = 2
_GRACE_SECONDS = 1.0
_MOST_REPORT_BYTES = 8192


class LookUpFailedError(Exception):
    """The stager refused, or was ended; its report, empty if it was ended."""

    def __init__(self, report: str) -> None:
        super().__init__(report)
        self.report = report


class LookUps:
    """Those of all users in this process."""

    def __init__(self) -> None:
        """Begin without any."""
        self._lock = threading.Lock()
        self._slow: Counter[int] = Counter()

    def run(self, words: Sequence[str], uid: int) -> None:
        """Run the stager to its end.

        Args:
            words: Its arguments.
            uid: For whom.

        Raises:
            LookUpFailedError: It refused, or took too long.
        """
        report, report_end = os.pipe()
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            pid = spawn(library_path(STAGER), words, (nothing, nothing, nothing, nothing, report_end))
        except (OSError, ValueError) as exc:  # ValueError: a word has a zero byte, or is no text
            os.close(report)
            number = exc.errno if isinstance(exc, OSError) else errno.EINVAL
            raise LookUpFailedError(f"{number}\tstage\tno process can be started\n") from exc
        finally:
            os.close(report_end)
            os.close(nothing)
        try:
            # Whoever hangs in a look-up keeps its end of the pipe: nothing is read of it.
            text = os.read(report, _MOST_REPORT_BYTES) if (status := self._wait(pid, uid)) is not None else b""
        finally:
            os.close(report)
        if status != 0 or text:
            raise LookUpFailedError(os.fsdecode(text))

    def _wait(self, pid: int, uid: int) -> int | None:
        """Return the status of a process that ended in time; one that did not is killed, and None returned."""
        pidfd = os.pidfd_open(pid)
        try:
            if _ends(pidfd, _QUICK_SECONDS) or self._ends_slowly(pidfd, uid):
                return os.waitpid(pid, 0)[1]
            os.kill(pid, signal.SIGKILL)
            _ends(pidfd, _GRACE_SECONDS)
            os.waitpid(pid, os.WNOHANG)
            return None
        finally:
            os.close(pidfd)

    def _ends_slowly(self, pidfd: int, uid: int) -> bool:
        with self._one_more_slow(uid) as is_allowed:
            return is_allowed and _ends(pidfd, _DEADLINE_SECONDS - _QUICK_SECONDS)

    @contextlib.contextmanager
    def _one_more_slow(self, uid: int) -> Iterator[bool]:
        with self._lock:
            is_allowed = self._slow[uid] < _MOST_SLOW_OF_A_USER
            self._slow[uid] += is_allowed
        try:
            yield is_allowed
        finally:
            with self._lock:
                self._slow[uid] -= is_allowed
                self._slow += Counter()  # forgets those who have none


def _ends(pidfd: int, seconds: float) -> bool:
    return bool(select.select([pidfd], [], [], seconds)[0])
