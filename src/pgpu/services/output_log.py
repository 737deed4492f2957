"""The stored output of a job: a reading position that survives gaps, the newest part, and the last lines."""

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from pgpu.engine.streams.frames import Frame, Kind, decode_gap
from pgpu.engine.streams.log import stored
from pgpu.engine.streams.records import Record, RecordDecoder, first_record
from pgpu.structs import Struct

MOST_PART_BYTES = 256 << 10
"""Of a `LogPart`."""


class LogCursor:
    """A position in a job's log, and the decoder for the records from there on."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        """Of the next byte."""

        self._records = RecordDecoder()

    @property
    def record_offset(self) -> int:
        """Of the first byte behind the complete records: a new cursor can begin there."""
        return self.offset - self._records.pending_bytes

    def read_frame(self, frame: Frame) -> Iterator[Record]:
        """Yield the records that a frame completes."""
        if frame.kind is Kind.GAP:
            self.jump(decode_gap(frame.payload))
        elif frame.kind is Kind.OUTPUT:
            yield from self.read(frame.payload)

    def read(self, data: bytes) -> Iterator[Record]:
        """Yield the records that the log's next bytes complete."""
        # Counts all bytes that were received, also those of a record that is not complete yet: the decoder keeps
        # them, and a new connection continues behind them.
        self.offset += len(data)
        yield from self._records.feed(data)

    def jump(self, offset: int) -> None:
        """Continue at another offset; an incomplete record before it is dropped."""
        # The rest of a record that began before the gap will never come.
        self._records.forget()
        self.offset = offset

    def read_stored(self, path: Path) -> Iterator[Record]:
        """Yield the records of a log file from this position to its current end."""
        for offset, data in stored(path, self.offset):
            # The oldest part of a capped log may have been removed since.
            if offset != self.offset:
                self.jump(offset)
            yield from self.read(data)


class LogPart(Struct, frozen=True):
    """The records of a log from an offset on, or the newest of them."""

    begin: int
    """Offset of the first record; another one than was asked for where output before it is left out."""

    end: int
    """Offset behind the last complete record."""

    records: Sequence[tuple[int, bytes]]
    """Offset and payload of each, of both streams in the order of their times."""


def read_part(path: Path, offset: int) -> LogPart:
    """Read a log from an offset on, at most its newest `MOST_PART_BYTES`.

    Raises:
        ValueError: No record begins at this offset.
    """
    pieces = list(stored(path, offset, MOST_PART_BYTES))
    begin, data = pieces[0][0] if pieces else offset, b"".join(piece for _, piece in pieces)
    if begin != offset:
        left_out = first_record(data)
        begin, data = begin + left_out, data[left_out:]
    cursor, records = LogCursor(begin), list[tuple[int, bytes]]()
    at = begin
    for record in cursor.read(data):
        records.append((at, record.payload))
        at = cursor.record_offset
    return LogPart(begin, at, records)


def last_lines(records: Iterator[Record], count: int) -> list[tuple[str, bytes]]:
    """Return the last lines of both streams together as (stream, bytes), in the order of their first bytes."""
    # A line in thousands of records is extended in place: a copy for each record would take quadratic time.
    lines: deque[tuple[str, bytearray]] = deque(maxlen=count)
    for record in records:
        for line in record.payload.splitlines(keepends=True):
            # A record ends where a read of the monitor ended, so a line may go on in the next one.
            if lines and lines[-1][0] == record.stream and not lines[-1][1].endswith((b"\n", b"\r")):
                lines[-1][1].extend(line)
            else:
                lines.append((record.stream, bytearray(line)))
    return [(stream, bytes(line)) for stream, line in lines]
