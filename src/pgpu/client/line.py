"""What joins a caller to one job, wherever its engine is: its output from any offset, and the way back to it.

Both forms of the client have a line of their own; `attaching` puts a terminal at its end. This module refuses to know
how either is connected.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from pgpu.engine.streams.frames import Frame, Kind, decode_gap
from pgpu.engine.streams.records import Record, RecordDecoder
from pgpu.model import JobState


class Sender(Protocol):
    """Takes frames for the job's supervisor."""

    def sendall(self, data: bytes, /) -> None:
        """Send all of it.

        Raises:
            OSError: The other side is gone.
        """
        ...


class Line(Protocol):
    """A job's output until it is final; its attributes are set before the first record is asked for."""

    owns_stdin: bool
    """Whether the job's standard input ends with this line."""

    on_connected: Callable[[Sender], None]
    """Called with each new connection."""

    wake_descriptor: int | None
    """Watched beside the connection; `on_wake` is called when it is readable."""

    on_wake: Callable[[], None]

    def records(self) -> Iterator[Record]:
        """Yield output until the job is final and all of it was yielded."""
        ...


class Hand(Protocol):
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


class Reading:
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
