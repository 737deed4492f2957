"""Starts the native monitor of a job and reads the record that it leaves.

The monitor (native/monitor) starts the launcher, carries the job's output into its log, serves clients and reaps the job. Its
order is a memory file of words with descriptors beside it, sent over a socket that it inherits. The process that starts a
monitor need not be the one that sends the order: a command starts one and hands the socket to the agent.
"""

import contextlib
import fcntl
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pgpu.errors import NodeError
from pgpu.host.file_lock import try_flock
from pgpu.host.process_identity import boot_id, has_ended
from pgpu.libraries import LAUNCHER, MONITOR, library_path
from pgpu.model import ProcessHolder
from pgpu.structs import Struct

if TYPE_CHECKING:
    import socket

_VERSION = "pgpu-monitor 1"
_FIRST_WORDS = "pgpu-record 1 "
_SIGNAL_EXIT_BASE = 128
_REAPED_SECONDS = 3600.0


class MonitorOrder(Struct, frozen=True):
    """What a monitor is to do; the descriptors stay the caller's."""

    job_id: str
    number: int
    """Of this start of the job; a start that was recorded is never repeated."""

    log: Path
    log_cap_bytes: int
    patience_seconds: float
    """How long a client that reads nothing holds the job back."""

    has_terminal: bool
    wants_stdin: bool
    launcher_words: tuple[str, ...] | None
    """Without the launcher's own name; None where the job runs elsewhere and only its streams are carried."""

    lock: int
    listener: int
    """Where clients attach; listening."""

    control: int
    """Datagram socket of control words."""

    spool: int
    """Directory of the records."""

    go: int
    """Read end of the launcher's control pipe; like each that is not needed, of /dev/null otherwise."""

    report: int
    """Write end of the launcher's report pipe."""

    streams: tuple[int, int, int]
    """Read ends of the job's stdout and stderr and the write end of its stdin, or three times the master side of its
    terminal."""

    job_ends: tuple[int, int, int]
    """The job's stdin, stdout and stderr."""

    done: int
    """Write end of a pipe, which the monitor closes once the end is recorded."""

    held: tuple[int, ...] = ()
    """At most 64 more, which the monitor keeps open until it ends and passes to no process: locks of GPUs, which outlive a
    killed agent that way while the job runs."""


class EndRecord(Struct, frozen=True):
    """How a job's main process ended."""

    has_run: bool
    """Whether its command was executed."""

    holder: ProcessHolder
    """The main process; start time 0 where /proc did not show it."""

    exit_code: int | None
    """0-255, 128 + signal for a signal; None while it runs."""

    ended_at_ns: int | None
    """Since the epoch."""

    dropped_bytes: int
    """Output that the log could not keep."""

    def exit_code_of(self, holder: ProcessHolder) -> int | None:
        """Return the exit code if this is the record of that process, and its command was executed."""
        return self.exit_code if self.has_run and self.holder == holder else None

    def shows_no_run_of(self, holder: ProcessHolder) -> bool:
        """Whether this process, if it has ended, never executed the command: the launcher marks the record before it does.

        A record of an earlier boot shows neither: the mark is not synced, so a power cut may have left the record without it.
        """
        return self.holder == holder and not self.has_run and holder.boot_id == boot_id()


class OfferedMonitor(Struct, frozen=True):
    """A monitor that another process started, and that waits for its order. The descriptors are the owner's to close."""

    connection: "socket.socket"
    """For the order; the monitor ends if it is closed before."""

    pidfd: int
    """Of the monitor."""

    def close(self) -> None:
        """Close both, which ends the monitor."""
        self.connection.close()
        os.close(self.pidfd)


class Monitor:
    """A monitor that was given its order: a child of this process, or another process's child."""

    def __init__(self, pid: int | None, pidfd: int | None = None) -> None:
        """Own a monitor.

        Args:
            pid: Of a child of this process; None for another process's child.
            pidfd: Of the latter; closed by `reap`.
        """
        self.pid = pid
        self._pidfd = pidfd

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, reaped or not."""
        if self.pid is None:
            return self._pidfd is None or has_ended(self._pidfd)
        with _reaping:
            return self.pid not in _children or bool(
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            )

    def kill(self) -> None:
        """Send SIGKILL; no effect if it was reaped."""
        with contextlib.suppress(ProcessLookupError):
            if self.pid is not None:
                os.kill(self.pid, signal.SIGKILL)
            elif self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def reap(self) -> None:
        """Wait for its end, then forget it; does nothing if it was forgotten already."""
        if self.pid is not None:
            _reap(self.pid)
            self.pid = None
        elif self._pidfd is not None:
            has_ended(self._pidfd, None)
            self.forget()

    def forget(self) -> None:
        """Close the descriptor of another process's child; a child of this one is reaped by `reap_ended_monitors`."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


_children: set[int] = set()
"""Monitors that this process started and did not reap yet."""

_reaping = threading.Lock()


def _reap(pid: int) -> None:
    with _reaping:
        if pid in _children:
            _children.remove(pid)
            os.waitpid(pid, 0)


def reap_ended_monitors() -> None:
    """Reap the monitors of this process that have ended, so that none stays a zombie; they end after their jobs."""
    with _reaping:
        for pid in tuple(_children):
            if os.waitpid(pid, os.WNOHANG)[0]:
                _children.remove(pid)


def start_idle_monitor(stderr: int | None = None) -> tuple[int, "socket.socket"]:
    """Start a monitor that waits for its order, as a child of this process in a session of its own.

    It ends if the socket is closed before the order is sent. `reap_ended_monitors` reaps it.

    Args:
        stderr: Its error output; None for /dev/null.

    Returns:
        Its PID, and the socket for `send_order`.

    Raises:
        NodeError: The monitor is missing from this installation.
        OSError: The kernel could not create a process.
    """
    import socket  # noqa: PLC0415 - most commands start nothing

    from pgpu.runtimes.launcher import spawn  # noqa: PLC0415 - likewise

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        streams = (nothing, nothing, nothing if stderr is None else stderr)
        pid = spawn(library_path(MONITOR), ("run", "3"), (*streams, theirs.fileno()))
    except BaseException:
        ours.close()
        raise
    finally:
        os.close(nothing)
        theirs.close()
    _children.add(pid)
    return pid, ours


def start_monitor(order: MonitorOrder, offered: OfferedMonitor | None = None) -> Monitor:
    """Give an order to the monitor that another process offers, or to one that is started here if that one has ended.

    Raises:
        NodeError: The monitor or the launcher is missing from this installation.
        OSError: The kernel could not create a process.
    """
    words = _words_of(order)
    if offered is not None:
        try:
            with offered.connection:
                send_order(offered.connection, words, order)
        except OSError:  # it was killed
            os.close(offered.pidfd)
        else:
            return Monitor(None, offered.pidfd)
    pid, connection = start_idle_monitor(stderr=2)
    with connection:
        send_order(connection, words, order)
    return Monitor(pid)


def _words_of(order: MonitorOrder) -> list[str]:
    words = [_VERSION, "--job", order.job_id, "--try", str(order.number), "--log", str(order.log)]
    words += [
        "--cap",
        str(order.log_cap_bytes),
        "--patience",
        str(round(order.patience_seconds * 1000)),
    ]
    words += [*(["--tty"] if order.has_terminal else []), *(["--stdin"] if order.wants_stdin else [])]
    if order.launcher_words is not None:
        words += ["--", str(library_path(LAUNCHER)), "--mark", *order.launcher_words]
    return words


def send_order(connection: "socket.socket", words: Sequence[str], order: MonitorOrder) -> None:
    """Send an order to a monitor or spawner."""
    import socket  # noqa: PLC0415 - likewise

    memory = os.memfd_create("order", os.MFD_CLOEXEC)
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(os.fsencode("\0".join(words) + "\0"))
        descriptors = [memory, order.lock, order.listener, order.control, order.spool, order.go, order.report]
        descriptors += [*order.streams, *order.job_ends, order.done, *order.held]
        socket.send_fds(connection, [b"\0"], descriptors)
    finally:
        os.close(memory)


def start_guard(lock: int, spool: Path, command: Sequence[str], stderr: int) -> int:
    """Start the guard of an agent, which starts the agent, and return the guard's PID; it is a child of this process.

    The guard (native/monitor/guard.h) restarts an agent that fails, holds its lock meanwhile, and records the ends of
    processes whose parents were killed.

    Args:
        lock: Locked by flock. The agent inherits it open across execve, and gets its number as its last argument but one.
        spool: Where those records go.
        command: The agent's, an absolute path first. It runs in a session of its own, in `/`, with this process's
            environment, and with `/dev/null` as its standard input and output. Its last argument is the number of its socket
            to the guard (`kept_descriptors`).
        stderr: Of the guard and the agent.

    Raises:
        NodeError: The monitor is missing from this installation.
        OSError: The kernel could not create a process.
    """
    from pgpu.runtimes.launcher import spawn  # noqa: PLC0415 - likewise

    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        words = ("guard", "3", str(spool.absolute()), "--", *command)
        return spawn(library_path(MONITOR), words, (nothing, nothing, stderr, lock), os.environ)
    finally:
        os.close(nothing)


def become_guard(lock: int, spool: Path, command: Sequence[str]) -> NoReturn:
    """Replace this process by the guard of another agent; see `start_guard`. Its children become the guard's.

    Raises:
        NodeError: The monitor is missing from this installation.
    """
    program = str(library_path(MONITOR))
    os.set_inheritable(lock, True)  # noqa: FBT003 - its only form
    os.execv(program, [program, "guard", str(lock), str(spool.absolute()), "--", *command])  # noqa: S606 - through no shell


def is_guard(pid: int) -> bool:
    """Whether a process is a guard now. An agent whose guard was killed becomes one, with the same PID and start time."""
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", errors="replace").strip() == MONITOR
    except (FileNotFoundError, ProcessLookupError):
        return False


def read_reaped(spool: Path, holder: ProcessHolder) -> int | None:
    """Return the exit code of exactly this process if a guard has recorded it: 0-255, 128 + signal for a signal.

    The record of its start shows whether it was the job's command or still the launcher.
    """
    with contextlib.suppress(FileNotFoundError, NodeError):
        return read_record(spool / f"reaped-{holder.pid}").exit_code_of(holder)
    return None


def remove_old_reaped(spool: Path) -> None:
    """Remove the guards' records of orphans that are older than an hour: the agents have taken in those of jobs long before."""
    oldest_seconds = time.time() - _REAPED_SECONDS
    for path in spool.glob("reaped-*"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < oldest_seconds:
                path.unlink()


def has_monitor(lock: Path) -> bool:
    """True if a monitor holds this lock: a job's monitor lives, even one that is stopped."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Shared: of two processes that look at the same time, neither takes the other for the monitor.
        return not try_flock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def read_record(path: Path) -> EndRecord:
    """Read a record of the spool.

    Raises:
        NodeError: It is none.
    """
    text = path.read_text("ascii", errors="replace").rstrip("\0")
    first, *lines = text.splitlines() or [""]
    fields = dict(line.partition("=")[::2] for line in lines)
    if not first.startswith(_FIRST_WORDS) or "pid" not in fields:
        raise NodeError(f"{path} is no record of a job")
    try:
        code = int(fields["code"]) if "code" in fields else None
        if "signal" in fields:
            code = _SIGNAL_EXIT_BASE + int(fields["signal"])
        ended_at_ns = int(fields["ended_ns"]) if "ended_ns" in fields else None
        return EndRecord(
            first.endswith("R"),
            ProcessHolder(int(fields["pid"]), int(fields.get("start", "0")), fields.get("boot", "")),
            code,
            ended_at_ns,
            int(fields.get("dropped", "0")),
        )
    except ValueError as exc:
        raise NodeError(f"{path} is no record of a job: {exc}") from exc
