"""Runs the stager and kills it if it hangs: a file system under a user's control may block a path look-up forever.

The caller is a thread of the server, of which there are few. So each user may have only a few slow look-ups at a time;
further ones are killed after the short deadline.
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
from pgpu.runtimes.launcher import spawn

_QUICK_SECONDS = 0.5
"""Deadline that applies to every look-up; local file systems take a thousandth of it."""

_DEADLINE_SECONDS = 10.0
"""For looking up a few paths; a suspended network file system takes seconds."""

_MOST_SLOW_OF_A_USER = 2
_GRACE_SECONDS = 1.0
_MOST_REPORT_BYTES = 8192
_MILLISECONDS = 1000


class LookUpFailedError(Exception):
    """The stager failed or was killed; `report` is its output, empty if it was killed."""

    def __init__(self, report: str) -> None:
        super().__init__(report)
        self.report = report


class LookUps:
    """All look-ups of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slow: Counter[int] = Counter()
        self._dying: set[int] = set()

    def run(self, words: Sequence[str], uid: int | None) -> None:
        """Run the stager to its end.

        Args:
            words: Its arguments.
            uid: The user; None for the server's own look-ups, which are exempt from the limit of slow ones.

        Raises:
            LookUpFailedError: It failed, or took too long.
        """
        try:
            report, pid = _started(words)
        except (OSError, ValueError) as exc:  # ValueError: an argument has a zero byte, or cannot be encoded
            raise _not_started(exc) from exc
        try:
            # A killed stager may still hold its end of the pipe, so the report is read only after it exited.
            text = os.read(report, _MOST_REPORT_BYTES) if (status := self._wait(pid, uid)) is not None else b""
        except OSError as exc:
            raise _not_started(exc) from exc
        finally:
            os.close(report)
        if status != 0 or text:
            raise LookUpFailedError(os.fsdecode(text))

    def _wait(self, pid: int, uid: int | None) -> int | None:
        """Return the exit status, or None after the deadline; the process is then killed."""
        status = None
        try:
            with _watched(pid) as pidfd:
                if _ends(pidfd, _QUICK_SECONDS) or self._ends_slowly(pidfd, uid):
                    status = os.waitpid(pid, 0)[1]
                else:
                    os.kill(pid, signal.SIGKILL)
                    _ends(pidfd, _GRACE_SECONDS)
        finally:
            self._reap(pid if status is None else None)
        return status

    def _reap(self, pid: int | None) -> None:
        """Kill a process, and reap the killed ones that have ended by now. A process in a blocked system call dies later."""
        with self._lock:
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                self._dying.add(pid)
            self._dying -= {each for each in self._dying if _is_reaped(each)}

    def _ends_slowly(self, pidfd: int, uid: int | None) -> bool:
        with self._one_more_slow(uid) as is_allowed:
            return is_allowed and _ends(pidfd, _DEADLINE_SECONDS - _QUICK_SECONDS)

    @contextlib.contextmanager
    def _one_more_slow(self, uid: int | None) -> Iterator[bool]:
        if uid is None:
            yield True
            return
        with self._lock:
            is_allowed = self._slow[uid] < _MOST_SLOW_OF_A_USER
            self._slow[uid] += is_allowed
        try:
            yield is_allowed
        finally:
            with self._lock:
                self._slow[uid] -= is_allowed
                self._slow += Counter()  # drops zero counts


def _started(words: Sequence[str]) -> tuple[int, int]:
    """Return the read end of the stager's report pipe, and its PID."""
    with contextlib.ExitStack() as stack:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        stack.callback(os.close, nothing)
        report, report_end = os.pipe()
        stack.callback(os.close, report_end)
        try:
            return report, spawn(library_path(STAGER), words, (nothing, nothing, nothing, nothing, report_end))
        except BaseException:
            os.close(report)
            raise


def _not_started(exc: Exception) -> LookUpFailedError:
    number = exc.errno if isinstance(exc, OSError) else errno.EINVAL
    return LookUpFailedError(f"{number}\tstage\tno process can be started\n")


@contextlib.contextmanager
def _watched(pid: int) -> Iterator[int]:
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def _is_reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:  # already reaped elsewhere in this process
        return True


def _ends(pidfd: int, seconds: float) -> bool:
    poll = select.poll()  # select() fails for descriptors above 1,023, which a server has
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(seconds * _MILLISECONDS))
