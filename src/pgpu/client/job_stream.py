"""The connection between a caller and one job, for local and HTTP clients: output from any offset, input, and control.

A subclass of `JobStream` opens the connections; this module decodes the frames of the job's monitor and resumes behind
the last byte after a lost connection. `terminal` attaches standard streams to it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Protocol

from pgpu.engine.streams.frames import FrameDecoder, Hello, Kind, encode_hello
from pgpu.engine.streams.records import Record
from pgpu.engine.unix_sockets import wait_readable
from pgpu.errors import CancelledError, WaitTimeoutError
from pgpu.model import Job, JobState
from pgpu.services.output_log import LogCursor


class Connection(Protocol):
    """A connection to the job's monitor: a socket, or what is used as one."""

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        ...

    def sendall(self, data: bytes, /) -> None:
        """Send all of it.

        Raises:
            OSError: The connection is closed.
        """
        ...


class JobStream(ABC):
    """Follows one job until it is final; set its attributes before the first record is read."""

    def __init__(self, offset: int, *, holds_back: bool) -> None:
        """Do not connect yet.

        Args:
            offset: Where in the job's log to begin.
            holds_back: Whether a slow reader blocks the job; otherwise it loses output.
        """
        self.reading = LogCursor(offset)
        self._holds_back = holds_back
        self.owns_stdin = False
        """Whether the job's standard input ends with this stream."""

        self.on_connected: Callable[[Connection], None] = lambda _: None
        """Called with each new connection."""

        self.wake_descriptor: int | None = None
        """Polled beside the connection; `on_wake` is called when it is readable."""

        self.on_wake: Callable[[], None] = lambda: None

    @abstractmethod
    def records(self) -> Iterator[Record]:
        """Yield output until the job is final and all of it was yielded."""

    def greeting(self) -> bytes:
        """Return the first frame of each new connection."""
        return encode_hello(Hello(self.reading.offset, self._holds_back, self.owns_stdin))

    def read_connection(self, receive: Callable[[], Sequence[bytes] | None]) -> Generator[Record, None, bool]:
        """Yield the records of one connection; return whether the monitor sent the end of the output.

        Args:
            receive: Waits for bytes; None once the connection is closed.
        """
        # One decoder for each connection: a frame that was cut off was not counted in the offset, and is sent again.
        frames = FrameDecoder()
        while (pieces := receive()) is not None:
            for piece in pieces:
                for frame in frames.feed(piece):
                    if frame.kind is Kind.END:
                        return True
                    yield from self.reading.read_frame(frame)
        return False

    def rest(self, seconds: float | None, descriptor: int | None = None) -> bool:
        """Sleep, None without end; a readable `wake_descriptor`, or another descriptor, ends it.

        Returns:
            Whether the other descriptor is readable.
        """
        ready = wait_readable(seconds, self.wake_descriptor, descriptor)
        if self.wake_descriptor in ready:
            self.on_wake()
        return descriptor in ready

    def rest_until_readable(self, connection: Connection) -> None:
        """Block until data can be received, and call `on_wake` meanwhile: a signal may come while no output arrives."""
        while not self.rest(None, connection.fileno()):
            pass

    @abstractmethod
    def state(self) -> JobState:
        """Return the job's state."""

    @abstractmethod
    def cancel(self) -> None:
        """End the job before it runs."""

    @abstractmethod
    def send_signal(self, number: int) -> None:
        """Send a signal to its main process."""

    @abstractmethod
    def send_window(self, columns: int, rows: int) -> None:
        """Set the size of its terminal, in characters."""


def require_grant(job: Job) -> Job:
    """Return a job that ended, unless it was never granted.

    Raises:
        WaitTimeoutError: Its wait ran out.
        CancelledError: It was cancelled while it waited.
    """
    if job.wait_timed_out:
        again = f" for try {job.attempt}" if job.attempt > 1 else ""
        raise WaitTimeoutError(f"job {job.id} was not granted in time{again}")
    if job.state is JobState.CANCELLED:
        raise CancelledError(f"job {job.id} was cancelled")
    return job
