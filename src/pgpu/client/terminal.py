"""A terminal and a job, joined: input, output, the window's size and the signals that a user sends.

It refuses to end with anything but the job's end: signals are the job's, as under `docker run`.
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

from pgpu.client.job_stream import JobControl, JobStream, Sender
from pgpu.engine.streams.frames import Kind, encode_frame
from pgpu.engine.streams.records import STDOUT
from pgpu.model import JobSpec, JobState

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Passed on to the job. A SIGHUP is not: when the terminal goes, the job goes on."""

_CHUNK_BYTES = 1 << 16


def attach(
    line: JobStream, hand: JobControl, spec: JobSpec, *, stdin: BinaryIO | None, stdout: BinaryIO, stderr: BinaryIO
) -> None:
    """Carry everything between the caller and a job until the job is final.

    Raises:
        NodeError: The ledger cannot be read, or the server cannot be reached.
        BrokenPipeError: The caller's output was closed; the job goes on.
    """
    takes_stdin = stdin is not None and spec.wants_stdin
    line.owns_stdin = takes_stdin
    with contextlib.ExitStack() as stack:
        line.on_connected = _greeting(hand, spec, _Stdin(stdin) if stdin is not None and takes_stdin else None)
        if spec.wants_tty:
            stack.enter_context(_raw(stdin))
        reader, numbers = stack.enter_context(_caught((*FORWARDED, signal.SIGWINCH)))
        line.wake_descriptor = reader
        line.on_wake = lambda: _pass_on(hand, spec, numbers())
        for record in line.records():
            output = stdout if record.stream == STDOUT else stderr
            output.write(record.payload)
            output.flush()


def _greeting(hand: JobControl, spec: JobSpec, stdin: "_Stdin | None") -> Callable[[Sender], None]:
    """Return what is done on each new connection; before the first, nobody is there to hear of the window."""

    def greet(connection: Sender) -> None:
        if spec.wants_tty:
            _tell_window(hand)
        if stdin is not None:
            stdin.feed(connection)

    return greet


def _pass_on(hand: JobControl, spec: JobSpec, numbers: Sequence[int]) -> None:
    """Hand signals to the job; before it runs nobody could take them, so one that would end it cancels it."""
    for number in numbers:
        if number == signal.SIGWINCH:
            if spec.wants_tty:
                _tell_window(hand)
        elif hand.state() in {JobState.WAITING, JobState.STARTING}:
            hand.cancel()
        else:
            hand.send_signal(number)


def _tell_window(hand: JobControl) -> None:
    """Tell the size of whichever standard stream is a terminal; COLUMNS and LINES may be older than the window."""
    for descriptor in range(3):
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(descriptor)
            hand.send_window(size.columns, size.lines)
            return


class _Stdin:
    """Sends the caller's input over whichever connection is the newest, from a thread that nobody waits for."""

    def __init__(self, stdin: BinaryIO) -> None:
        self._read = _reader_of(stdin)
        self._connection: Sender | None = None
        self._thread: threading.Thread | None = None

    def feed(self, connection: Sender) -> None:
        """Send input over this connection from now on."""
        self._connection = connection
        if self._thread is None:
            self._thread = threading.Thread(target=self._carry, daemon=True)
            self._thread.start()

    def _carry(self) -> None:
        while data := self._read():
            self._send(encode_frame(Kind.STDIN, data))
        self._send(encode_frame(Kind.STDIN_END))

    def _send(self, frame: bytes) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):  # The supervisor is gone, and with it the job's input.
                self._connection.sendall(frame)


def _reader_of(stdin: BinaryIO) -> Callable[[], bytes]:
    """Read past Python's buffer where there is a descriptor: a thread inside the buffer's lock blocks the exit."""
    try:
        descriptor = stdin.fileno()
    except (UnsupportedOperation, AttributeError):
        return lambda: stdin.read(_CHUNK_BYTES)

    def read() -> bytes:
        try:
            return os.read(descriptor, _CHUNK_BYTES)
        except OSError:
            return b""

    return read


@contextlib.contextmanager
def _raw(stdin: BinaryIO | None) -> Iterator[None]:
    """Let every key through to the job's own terminal, Ctrl-C too, and put everything back."""
    if stdin is None or not stdin.isatty():
        yield
        return
    before = termios.tcgetattr(stdin)
    tty.setraw(stdin.fileno())
    try:
        yield
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _caught(numbers: Sequence[int]) -> Iterator[tuple[int | None, Callable[[], Sequence[int]]]]:
    """Catch signals; yield a descriptor that is readable when some came, and how to take them.

    Only the main thread can: elsewhere nothing is caught.
    """
    if threading.current_thread() is not threading.main_thread():
        yield None, tuple
        return
    reader, writer = socket.socketpair(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    with reader, writer:
        before = {number: signal.signal(number, lambda *_: None) for number in numbers}
        previous_descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield reader.fileno(), lambda: [number for number in reader.recv(64) if number in numbers]
        finally:
            signal.set_wakeup_fd(previous_descriptor)
            for number, handler in before.items():
                signal.signal(number, handler)
