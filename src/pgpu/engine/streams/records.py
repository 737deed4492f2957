"""The format of output in logs and on connections: records, each with its stream, its time and its bytes."""

import re
import struct
from collections.abc import Iterator
from typing import Final

from pgpu.structs import Struct

STDOUT: Final = "stdout"
STDERR: Final = "stderr"

HEADER = struct.Struct(">BIQ")
"""Stream number as in Docker's attach protocol, bytes that follow, nanoseconds since the epoch."""

MOST_PAYLOAD_BYTES = 1 << 24
"""Largest record; a larger length means that the bytes are no log."""

# A stream's number, a length of up to MOST_PAYLOAD_BYTES and a time between 2020 and 2043. Found at each byte, as records may overlap it.
_MAYBE_HEADER = re.compile(rb"(?s)(?=[\x01\x02][\x00\x01]...[\x15-\x1f].{7})")

_NUMBERS = {STDOUT: 1, STDERR: 2}
_NAMES = {number: name for name, number in _NUMBERS.items()}


class Record(Struct, frozen=True):
    """One piece of output."""

    stream: str
    """`stdout` or `stderr`."""

    payload: bytes
    time_ns: int
    """Nanoseconds since the epoch, when the monitor read it."""


def encode(record: Record) -> bytes:
    """Return a record's bytes."""
    return HEADER.pack(_NUMBERS[record.stream], len(record.payload), record.time_ns) + record.payload


def first_record(data: bytes) -> int:
    """Return where the first record begins in bytes that begin anywhere in a log and end where it ends; their length without one.

    Nothing in the log marks a record's begin: it is the first header from which one record follows another to the end.
    """
    begins: set[int] = set()
    for at in reversed([match.start() for match in _MAYBE_HEADER.finditer(data)]):
        end = at + HEADER.size + HEADER.unpack_from(data, at)[1]
        if end in begins or end > len(data) - HEADER.size:  # the last record, or its header, may be incomplete
            begins.add(at)
    return min(begins, default=len(data))


class RecordDecoder:
    """Decodes records from pieces that may end anywhere in a record."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[Record]:
        """Yield every record that these bytes complete.

        Raises:
            ValueError: The bytes are no records.
        """
        self._pending += data
        while len(self._pending) >= HEADER.size:
            number, payload_bytes, time_ns = HEADER.unpack_from(self._pending)
            if number not in _NAMES or payload_bytes > MOST_PAYLOAD_BYTES:
                raise ValueError("the bytes are no record of output")
            end = HEADER.size + payload_bytes
            if len(self._pending) < end:
                return
            payload = bytes(self._pending[HEADER.size : end])
            del self._pending[:end]
            yield Record(_NAMES[number], payload, time_ns)

    @property
    def pending_bytes(self) -> int:
        """Length of the part of a record that was fed and is not complete."""
        return len(self._pending)

    def forget(self) -> None:
        """Discard an incomplete record: its end is lost."""
        self._pending.clear()
