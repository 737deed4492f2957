"""The control daemon as a process: whether it exists, independent of its responses, and how it is ended.

On a busy machine a daemon may not respond although its servers and clients run; a daemon that received `quit` may still
be exiting. Only the process table distinguishes these from a dead daemon, and lists the servers that a dead one left.
Only the control program and its servers are ever killed.
"""

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

from pgpu.libraries import SIMULATED_MPS_CONTROL, library_path

PROGRAM = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"

_PID_FILE = f"{PROGRAM}.pid"
_REPLACED = " (deleted)"
"""Suffix that the kernel adds to the path of an executable that was replaced while it ran, such as by a driver update."""

_PF_EXITING = 0x4
"""Set before an exiting process closes its first descriptor."""

_KILL_SECONDS = 5.0
"""Time for the kernel to end a killed process."""


def find_control(*, is_simulated: bool) -> Path | None:
    """Return the control program of this machine's driver, or the simulated one; None if there is none."""
    if is_simulated:
        return library_path(SIMULATED_MPS_CONTROL)
    # Not `Path.is_file`, which raises where a directory of PATH is closed to this user.
    places = (os.path.join(directory, PROGRAM) for directory in os.get_exec_path())  # noqa: PTH118 - see above
    return next((Path(each) for each in places if os.path.isfile(each) and os.access(each, os.X_OK)), None)  # noqa: PTH113


@contextlib.contextmanager
def daemon_process(pipe_directory: Path) -> Iterator[int | None]:
    """Open the daemon of a pipe directory as a pidfd, which stays valid if its PID is reused.

    Yields:
        A pidfd; None if the daemon is gone.
    """
    descriptor = _open(pipe_directory)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def is_there(pipe_directory: Path) -> bool:
    """True if the daemon's process runs or is stopped, whether it responds or not."""
    with daemon_process(pipe_directory) as descriptor:
        return descriptor is not None


def children(pipe_directory: Path) -> list[int]:
    """Return the PIDs of the daemon's servers from procfs; empty if the daemon is gone."""
    with contextlib.suppress(OSError, ValueError):
        pid = _pid(pipe_directory)
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    return []


def is_ending(pid: int) -> bool:
    """True if a process is gone or exiting. Clients lose a server before its parent or a pidfd is notified of its end."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return True
    fields = text[text.rindex(")") + 2 :].split()
    # Source: proc_pid_stat(5); the ninth field has the kernel's flags, include/linux/sched.h. The name in parentheses may contain
    # spaces and parentheses, so fields are counted from the last `)`.
    return fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING)


def end(descriptor: int, grace_seconds: float) -> None:
    """Wait for a daemon after `quit`, and kill it if it does not exit in time."""
    if not _has_ended(descriptor, grace_seconds):
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        _has_ended(descriptor, _KILL_SECONDS)


def end_servers(word: str) -> None:
    """Kill the servers that a dead daemon left; each would hold the GPU as long as one of its clients lives.

    Args:
        word: `NAME=value` of the daemon's environment, which its servers inherit and no other daemon's servers have.
    """
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
        if _is_server(pid, word):
            _kill_server(pid, word)


def _kill_server(pid: int, word: str) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if _is_server(pid, word):  # the PID may have been reused before the pidfd was opened
            end(descriptor, 0.0)
    finally:
        os.close(descriptor)


def _open(pipe_directory: Path) -> int | None:
    try:
        pid = _pid(pipe_directory)
        descriptor = os.pidfd_open(pid)
    except (OSError, ValueError):
        return None
    # The executable is checked, since the PID in the file may have been reused.
    if _program(pid) == PROGRAM and not _has_ended(descriptor, 0.0):
        return descriptor
    os.close(descriptor)
    return None


def _pid(pipe_directory: Path) -> int:
    return int((pipe_directory / _PID_FILE).read_text(encoding="ascii"))


def _program(pid: int) -> str | None:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink().name.removesuffix(_REPLACED)
    return None


def _is_server(pid: int, word: str) -> bool:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return _program(pid) == SERVER and word.encode() in words
    return False


def _has_ended(descriptor: int, timeout_seconds: float) -> bool:
    """Poll the pidfd, which is readable once its process has ended, reaped or not."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(1000 * timeout_seconds))
