"""Standard streams, window size and signals of the caller, connected to a job.

Signals are forwarded to the job, as under `docker run`; the command itself ends only with the job.
"""

import contextlib
import os
import signal
import socket
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Sequence
from io import UnsupportedOperation
from typing import BinaryIO

from pgpu.client.job_stream import Connection, JobStream
from pgpu.engine.streams.frames import Kind, encode_frame
from pgpu.engine.streams.records import STDOUT
from pgpu.model import JobSpec, JobState

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Not SIGHUP: a job continues when the terminal closes."""

_CHUNK_BYTES = 1 << 16


def attach(
    stream: JobStream,
    spec: JobSpec,
    *,
    stdin: BinaryIO | None,
    stdout: BinaryIO,
    stderr: BinaryIO,
) -> None:
    """Carry streams, signals and the window size between the caller and a job until the job is final.

    Raises:
        NodeError: The ledger cannot be read, or the server cannot be reached.
        BrokenPipeError: The caller's output was closed; the job continues.
    """
    stdin_sender = _StdinSender(stdin) if stdin is not None and spec.wants_stdin else None
    stream.owns_stdin = stdin_sender is not None

    def greet(connection: Connection) -> None:
        # The sockets that receive the window size exist only once a connection is made.
        if spec.wants_tty:
            _send_window(stream)
        if stdin_sender is not None:
            stdin_sender.use(connection)

    with contextlib.ExitStack() as stack:
        stream.on_connected = greet
        if spec.wants_tty:
            stack.enter_context(_raw_mode(stdin))
        descriptor, received = stack.enter_context(_caught_signals((*FORWARDED, signal.SIGWINCH)))
        stream.wake_descriptor = descriptor
        has_output = False
        stream.on_wake = lambda: _forward_signals(stream, spec, received(), has_output=has_output)
        for record in stream.records():
            has_output = True
            output = stdout if record.stream == STDOUT else stderr
            output.write(record.payload)
            output.flush()


def _forward_signals(stream: JobStream, spec: JobSpec, numbers: Sequence[int], *, has_output: bool) -> None:
    """Send signals to the job; before the job has a process, a signal cancels it.

    Args:
        stream: Of the job.
        spec: Of the job.
        numbers: The signals.
        has_output: Whether the job has written something: its process is there then, even if the ledger does not have it yet;
            not if it waits for its next try.
    """
    for number in numbers:
        if number == signal.SIGWINCH:
            if spec.wants_tty:
                _send_window(stream)
        elif (state := stream.state()) is JobState.WAITING or (state is JobState.STARTING and not has_output):
            stream.cancel()
        else:
            stream.send_signal(number)


def _send_window(stream: JobStream) -> None:
    # Of the first standard stream that is a terminal: COLUMNS and LINES may be older than the window.
    for descriptor in range(3):
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(descriptor)
            stream.send_window(size.columns, size.lines)
            return


class _StdinSender:
    """Reads standard input in a daemon thread and sends it over the newest connection."""

    def __init__(self, stdin: BinaryIO) -> None:
        self._stdin = stdin
        self._connection: Connection | None = None
        self._thread: threading.Thread | None = None

    def use(self, connection: Connection) -> None:
        """Send input over this connection from now on; the first call starts the thread."""
        self._connection = connection
        if self._thread is None:
            self._thread = threading.Thread(target=self._carry, daemon=True)
            self._thread.start()

    def _carry(self) -> None:
        while data := self._read():
            self._send(encode_frame(Kind.STDIN, data))
        self._send(encode_frame(Kind.STDIN_END))

    def _read(self) -> bytes:
        # Past Python's buffer where there is a descriptor: a thread that holds the buffer's lock blocks the exit.
        try:
            descriptor = self._stdin.fileno()
        except (UnsupportedOperation, AttributeError):
            return self._stdin.read(_CHUNK_BYTES)
        try:
            return os.read(descriptor, _CHUNK_BYTES)
        except OSError:
            return b""

    def _send(self, frame: bytes) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):  # The monitor has closed the connection: the job's input has ended.
                self._connection.sendall(frame)


@contextlib.contextmanager
def _raw_mode(stdin: BinaryIO | None) -> Iterator[None]:
    """Pass every key to the job's own terminal, Ctrl-C too, and restore the caller's terminal at the end."""
    if stdin is None or not stdin.isatty():
        yield
        return
    before = termios.tcgetattr(stdin)
    # Line editing and signals of keys are then done by the job's own terminal.
    tty.setraw(stdin.fileno())
    try:
        yield
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _caught_signals(numbers: Sequence[int]) -> Iterator[tuple[int | None, Callable[[], Sequence[int]]]]:
    """Catch signals; yield a descriptor that is readable when some arrived, and a function that returns them.

    Python delivers signals to the main thread only: in other threads nothing is caught.
    """
    if threading.current_thread() is not threading.main_thread():
        yield None, tuple
        return
    reader, writer = socket.socketpair(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    with reader, writer:
        # A handler in Python, even one that does nothing: only for those does the interpreter write to the wakeup
        # descriptor.
        before = {number: signal.signal(number, lambda *_: None) for number in numbers}
        previous_descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield reader.fileno(), lambda: [number for number in reader.recv(64) if number in numbers]
        finally:
            signal.set_wakeup_fd(previous_descriptor)
            for number, handler in before.items():
                signal.signal(number, handler)
