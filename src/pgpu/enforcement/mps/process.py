"""The control daemon as a process: whether it is there, whatever it answers, and its end.

A daemon that a busy machine keeps from answering still has its servers and clients, and so has one that was told to end and
has not yet. Only the process table tells such a one from one that died, and which servers that one left. It refuses to end
anything but a control program and its servers.
"""

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

PROGRAM = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"

_PID_FILE = f"{PROGRAM}.pid"
_REPLACED = " (deleted)"
"""What the kernel adds to the name of a program that was replaced while it ran, as by an update of the driver."""

_PF_EXITING = 0x4
"""Set before a process that ends closes its first descriptor."""

_KILL_SECONDS = 5.0
"""How long the kernel may take to end a process that was killed."""


@contextlib.contextmanager
def daemon_process(pipe_directory: Path) -> Iterator[int | None]:
    """Hold on to the daemon of a pipe directory, so that nobody who gets its PID later is taken for it.

    Yields:
        A pidfd; None where it is gone.
    """
    descriptor = _open(pipe_directory)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def is_there(pipe_directory: Path) -> bool:
    """Whether the daemon's process runs or is stopped, whether it answers or not."""
    with daemon_process(pipe_directory) as descriptor:
        return descriptor is not None


def children(pipe_directory: Path) -> list[int]:
    """Return the PIDs of the daemon's servers as the kernel knows them; none where it is gone."""
    with contextlib.suppress(OSError, ValueError):
        pid = _pid(pipe_directory)
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    return []


def is_ending(pid: int) -> bool:
    """Whether a process is gone or on its way: clients lose a server that dies before its parent, or a pidfd, knows."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return True
    fields = text[text.rindex(")") + 2 :].split()
    # Source: proc_pid_stat(5); the flags, the ninth field, are the kernel's own, include/linux/sched.h.
    return fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING)


def end(descriptor: int, grace_seconds: float) -> None:
    """Wait for a daemon that was told to quit, and kill it where it does not."""
    if not _has_ended(descriptor, grace_seconds):
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        _has_ended(descriptor, _KILL_SECONDS)


def end_servers(word: str) -> None:
    """Kill the servers that a dead daemon left: each would hold the GPU as long as a client of it lives.

    Args:
        word: Of the daemon's environment, which its servers have from it, and no other daemon's have.
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
        if _is_server(pid, word):  # still the same
            end(descriptor, 0.0)
    finally:
        os.close(descriptor)


def _open(pipe_directory: Path) -> int | None:
    try:
        pid = _pid(pipe_directory)
        descriptor = os.pidfd_open(pid)
    except (OSError, ValueError):
        return None
    if _is_control(pid) and not _has_ended(descriptor, 0.0):
        return descriptor
    os.close(descriptor)
    return None


def _pid(pipe_directory: Path) -> int:
    return int((pipe_directory / _PID_FILE).read_text(encoding="ascii"))


def _is_control(pid: int) -> bool:
    """A PID is used again by whoever comes."""
    return _program(pid) == PROGRAM


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
    """A pidfd is readable once its process ended, reaped or not."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(1000 * timeout_seconds))
