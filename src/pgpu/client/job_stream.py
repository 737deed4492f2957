"""What joins a caller to one job, wherever its engine is: its output from any offset, and the way back to it.

Both forms of the client have a line of their own; `attaching` puts a terminal at its end. This module refuses to know
how either is connected.
"""

import select
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Protocol

from pgpu.engine.streams.frames import Frame, FrameDecoder, Hello, Kind, decode_gap, encode_hello
from pgpu.engine.streams.records import Record, RecordDecoder
from pgpu.model import JobState

_MILLISECONDS = 1000


class Sender(Protocol):
    """Takes frames for the job's supervisor."""

    def sendall(self, data: bytes, /) -> None:
        """Send all of it.

        Raises:
            OSError: The other side is gone.
        """
        ...


class Readable(Protocol):
    """Something to poll."""

    def fileno(self) -> int:
        """Return its descriptor."""
        ...


class JobStream(ABC):
    """Follows one job until it is final; its attributes are set before the first record is asked for."""

    def __init__(self, offset: int, *, holds_back: bool) -> None:
        """Do not connect yet.

        Args:
            offset: Where in the job's log to begin.
            holds_back: Whether the job is to be held back rather than that output is lost.
        """
        self.reading = LogCursor(offset)
        self._holds_back = holds_back
        self.owns_stdin = False
        """Whether the job's standard input ends with this line."""

        self.on_connected: Callable[[Sender], None] = lambda _: None
        """Called with each new connection."""

        self.wake_descriptor: int | None = None
        """Watched beside the connection; `on_wake` is called when it is readable."""

        self.on_wake: Callable[[], None] = lambda: None

    @abstractmethod
    def records(self) -> Iterator[Record]:
        """Yield output until the job is final and all of it was yielded."""

    def greeting(self) -> bytes:
        """Return what each new connection begins with."""
        return encode_hello(Hello(self.reading.offset, self._holds_back, self.owns_stdin))

    def heard(self, receive: Callable[[], Sequence[bytes] | None]) -> Generator[Record, None, bool]:
        """Yield what the job's supervisor sends over one connection; return whether it said that this was all.

        Args:
            receive: Waits for bytes; None once nobody sends any more.
        """
        frames = FrameDecoder()
        while (pieces := receive()) is not None:
            for piece in pieces:
                for frame in frames.feed(piece):
                    if frame.kind is Kind.END:
                        return True
                    yield from self.reading.read_frame(frame)
        return False

    def rest(self, seconds: float) -> None:
        """Pause, unless there is something to hear of before."""
        if self.wake_descriptor is None:
            threading.Event().wait(seconds)
            return
        poll = select.poll()
        poll.register(self.wake_descriptor, select.POLLIN)
        if poll.poll(seconds * _MILLISECONDS):
            self.on_wake()

    def rest_until_readable(self, connection: Readable) -> None:
        """Wait until something can be received."""
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        if self.wake_descriptor is not None:
            poll.register(self.wake_descriptor, select.POLLIN)
        while connection.fileno() not in (ready := dict(poll.poll())):
            if ready:
                self.on_wake()


class JobControl(Protocol):
    """What a caller does to the job at the end of a line."""

    def state(self) -> JobState:
        """Return where the job is in its life."""
        ...

    def cancel(self) -> None:
        """End it before it runs."""
        ...

    def send_signal(self, number: int) -> None:
        """Send a signal to its main process."""
        ...

    def send_window(self, columns: int, rows: int) -> None:
        """Tell it the size of the caller's terminal, in characters."""
        ...


class LogCursor:
    """Where in a job's log a reader is, and the records that it puts together from there."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        """Of the next byte."""

        self._records = RecordDecoder()

    def read_frame(self, frame: Frame) -> Iterator[Record]:
        """Yield the records that a frame completes."""
        if frame.kind is Kind.GAP:
            self.jump(decode_gap(frame.payload))
        elif frame.kind is Kind.OUTPUT:
            yield from self.read(frame.payload)

    def read(self, data: bytes) -> Iterator[Record]:
        """Yield the records that the log's next bytes complete."""
        self.offset += len(data)
        yield from self._records.feed(data)

    def jump(self, offset: int) -> None:
        """Go on elsewhere: what was between is lost."""
        self._records.forget()
        self.offset = offset
