"""The agent's ends of a job's standard streams, and the ends that the job gets.

Output comes through named pipes that the job itself holds open for reading too. So a job whose agent and monitor were killed
gets no SIGPIPE, and its next agent opens the same pipes. A terminal has no name to open it by: its master side is open in the
agent, in the monitor and in the agent's guard, and the job gets a SIGHUP once all are gone.
"""

import contextlib
import fcntl
import os
import struct
import termios

from pgpu.engine.settings import JobPaths
from pgpu.engine.streams.records import STDERR, STDOUT
from pgpu.model import JobSpec
from pgpu.runtimes import Stdio
from pgpu.structs import Struct


class JobStreams(Struct):
    """Descriptors of the agent's side; `outputs` are non-blocking."""

    outputs: tuple[int, ...]
    """Of `stdout` and `stderr`, or of the terminal alone."""

    stdin: int | None
    """The end where input is written, non-blocking; None for a job without input."""

    terminal: int | None
    """The master side of the pty, which then is the only output and the input; None without a terminal."""

    job_ends: Stdio | None

    def close_job_ends(self) -> None:
        """Close the job's ends here, so that those of the job are the last."""
        if self.job_ends is not None:
            for descriptor in {self.job_ends.stdin, self.job_ends.stdout, self.job_ends.stderr}:
                os.close(descriptor)
            self.job_ends = None

    def close_stdin(self) -> None:
        """Close the end where input is written, which the monitor has as well."""
        if self.stdin is not None and self.terminal is None:
            os.close(self.stdin)
        self.stdin = None

    def set_window(self, columns: int, rows: int) -> None:
        """Set the terminal's size in characters; no effect without a terminal."""
        if self.terminal is not None:
            fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close(self) -> None:
        """Close everything that is open."""
        self.close_job_ends()
        self.close_stdin()
        for descriptor in self.outputs:
            os.close(descriptor)
        self.outputs, self.terminal = (), None


def open_streams(spec: JobSpec, places: JobPaths, terminal: int | None = None) -> JobStreams:
    """Make the streams of a job that is about to start, or open the pipes of one that runs already.

    Args:
        spec: Of the job.
        places: Where its pipes are.
        terminal: Master side of the terminal of a job that runs already; None makes a terminal.
    """
    return _open_terminal(spec, terminal) if spec.wants_tty else _open_pipes(spec, places)


def has_unread_output(spec: JobSpec, places: JobPaths) -> bool:
    """Whether a job's pipes hold output; of a terminal, which has no name, whether it may."""
    if spec.wants_tty:
        return True
    for stream in (STDOUT, STDERR):
        try:
            pipe = os.open(places.pipe(stream), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            (unread_bytes,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
        finally:
            os.close(pipe)
        if unread_bytes:
            return True
    return False


def _open_terminal(spec: JobSpec, master: int | None) -> JobStreams:
    if master is None:
        master, slave = os.openpty()
    else:
        slave = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)  # the job has its ends
    os.set_blocking(master, False)
    job_ends = Stdio(slave, slave, slave)
    return JobStreams((master,), master if spec.wants_stdin else None, master, job_ends)


def _open_pipes(spec: JobSpec, places: JobPaths) -> JobStreams:
    outputs, ends = list[int](), list[int]()
    for stream in (STDOUT, STDERR):
        path = places.pipe(stream)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        outputs.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        ends.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    if not spec.wants_stdin:
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return JobStreams(tuple(outputs), None, None, Stdio(nothing, ends[0], ends[1]))
    job_stdin, our_stdin = os.pipe()
    os.set_blocking(our_stdin, False)
    return JobStreams(tuple(outputs), our_stdin, None, Stdio(job_stdin, ends[0], ends[1]))
