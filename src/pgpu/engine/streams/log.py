"""The log of one job: its output as records in a file, and the older half in a second one.

Every byte has an offset that never changes, counted from the job's first, so that readers can go on after a rotation
or in another process. A log that cannot be written (full disk) never stops a job: the last few MiB are kept in memory
then, for those who follow now, and written once there is room again, unless some of them had to go.
"""

import array
import fcntl
import os
import struct
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pgpu.engine.streams.records import HEADER, MOST_PAYLOAD_BYTES, Record, encode, encode_header, shortened

MEMORY_BYTES = 8 * 1024 * 1024
"""Kept in memory once the file cannot be written; more than a client may lag behind."""

RETRY_NS = 1_000_000_000
"""How long after a file could not be written it is tried again, by the times of what is added."""

_FILE_HEADER = struct.Struct(">8sQ")
_MAGIC = b"PGPULOG\x01"


class OutputLog:
    """Writes one job's log, and reads it back for those who follow."""

    def __init__(self, path: Path, cap_bytes: int) -> None:
        """Open the log or go on with it; a record that a dying writer left unfinished ends where it ends.

        Args:
            path: The file; its older half lies beside it.
            cap_bytes: Most that both files together hold.
        """
        self._path = path
        self._half_bytes = max(_FILE_HEADER.size + 1, cap_bytes // 2)
        self._unsaved: bytearray | None = None
        self._tried_at_ns = 0
        self._file: _LogFile | None = None
        self._older: _LogFile | None = None
        self.end = 0
        self.trouble: str | None = None
        """Why the file is not written any more; None while it is."""

        self._open()

    def append(self, record: Record) -> None:
        """Add a record; never fails."""
        data = encode(record)
        if self._unsaved is not None and record.time_ns - self._tried_at_ns >= RETRY_NS:
            self._tried_at_ns = record.time_ns
            self.save()
        if self._unsaved is None:
            try:
                self._write(data)
            except OSError as exc:
                self.trouble = f"the log {self._path} is incomplete: {exc.strerror}"
                self._unsaved, self._tried_at_ns = bytearray(), record.time_ns
        if self._unsaved is not None:
            self._unsaved += data
            del self._unsaved[: max(0, len(self._unsaved) - MEMORY_BYTES)]
        self.end += len(data)

    def save(self) -> None:
        """Write what is in memory alone, if the file can take it now and joins it."""
        if self._unsaved is None or self._file is None or len(self._unsaved) > self._half_bytes:
            return
        if self._file.end + len(self._unsaved) != self.end:
            return
        with suppress(OSError):
            self._write(bytes(self._unsaved))
            self._unsaved, self.trouble = None, None

    def take(self, stream: str, pipe: int, most_bytes: int, time_ns: int) -> bool:
        """Add what waits in a pipe without holding it in between: who kills this process at any instant loses no byte.

        False where nothing was taken: the pipe is empty, or the log cannot be written that way and the caller reads.
        """
        waiting_bytes = min(_waiting_bytes(pipe), most_bytes)
        if waiting_bytes == 0 or self._unsaved is not None:
            return False
        try:
            file = self._with_room_for(HEADER.size + waiting_bytes)
            taken_bytes = file.take(encode_header(stream, waiting_bytes, time_ns), pipe, waiting_bytes)
        except OSError:
            return False
        self.end = file.end
        return taken_bytes > 0

    def read(self, offset: int, most_bytes: int) -> bytes:
        """Return bytes from an offset on; empty at the end, and where they are gone (`oldest_from` says where to go)."""
        if self._unsaved is not None and offset >= self.end - len(self._unsaved):
            start = offset - (self.end - len(self._unsaved))
            return bytes(self._unsaved[start : start + most_bytes])
        for file in (self._older, self._file):
            if file is not None and file.holds(offset):
                return file.read(offset, most_bytes)
        return b""

    def oldest_from(self, offset: int) -> int:
        """Return `offset`, or the next one that can still be read, or the end."""
        parts = [(file.base, file.end) for file in (self._older, self._file) if file is not None]
        parts.append((self.end - len(self._unsaved or b""), self.end))
        return next((max(offset, begin) for begin, end in parts if offset < end), self.end)

    def close(self) -> None:
        """Close the files."""
        for file in (self._older, self._file):
            if file is not None:
                file.close()

    def _open(self) -> None:
        try:
            self._older = _LogFile.open(self._path.with_suffix(".1"))
            self._file = _LogFile.open(self._path)
            if self._file is None:
                self._file = _LogFile.create(self._path, self._older.end if self._older else 0)
            self._file.end_unfinished()
            self.end = self._file.end
        except OSError as exc:
            self.trouble = f"the log {self._path} cannot be written: {exc.strerror}"
            self._unsaved = bytearray()

    def _write(self, data: bytes) -> None:
        self._with_room_for(len(data)).append(data)

    def _with_room_for(self, size_bytes: int) -> "_LogFile":
        if self._file is None:
            raise OSError(0, "it was never opened")
        if self._file.size_bytes + size_bytes <= self._half_bytes or self._file.size_bytes <= _FILE_HEADER.size:
            return self._file
        return self._rotate(self._file)

    def _rotate(self, full: "_LogFile") -> "_LogFile":
        self._path.rename(self._path.with_suffix(".1"))
        fresh = _LogFile.create(self._path, full.end)
        if self._older is not None:
            self._older.close()
        self._older, self._file = full, fresh
        return fresh


class _LogFile:
    """One of the two files: a header with the offset of its first byte, then records."""

    def __init__(self, descriptor: int, base: int, size_bytes: int) -> None:
        self._descriptor = descriptor
        self.base = base
        self.size_bytes = size_bytes

    @classmethod
    def open(cls, path: Path, *, is_read_only: bool = False) -> "_LogFile | None":
        """Open a file that is there; one whose header was never finished counts as not there."""
        try:
            descriptor = os.open(path, (os.O_RDONLY if is_read_only else os.O_RDWR) | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        header = os.pread(descriptor, _FILE_HEADER.size, 0)
        if len(header) < _FILE_HEADER.size or _FILE_HEADER.unpack(header)[0] != _MAGIC:
            os.close(descriptor)
            return None
        return cls(descriptor, _FILE_HEADER.unpack(header)[1], os.fstat(descriptor).st_size)

    @classmethod
    def create(cls, path: Path, base: int) -> "_LogFile":
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        file = cls(descriptor, base, 0)
        try:
            file.append(_FILE_HEADER.pack(_MAGIC, base))
        except BaseException:  # Ctrl-C too: nobody gets the file, so nobody else could close it.
            file.close()
            raise
        return file

    @property
    def end(self) -> int:
        return self.base + self.size_bytes - _FILE_HEADER.size

    def holds(self, offset: int) -> bool:
        return self.base <= offset < self.end

    def read(self, offset: int, most_bytes: int) -> bytes:
        most_bytes = min(most_bytes, self.end - offset)
        return os.pread(self._descriptor, most_bytes, offset - self.base + _FILE_HEADER.size)

    def append(self, data: bytes) -> None:
        """Add all of it or nothing."""
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._descriptor, data[written:], self.size_bytes + written)
        except OSError:
            os.ftruncate(self._descriptor, self.size_bytes)
            raise
        self.size_bytes += written

    def take(self, header: bytes, pipe: int, payload_bytes: int) -> int:
        """Add a record of what waits in a pipe, or of the beginning that finds room; return how much that was.

        The kernel moves the bytes: at each instant they are in the pipe or in the file.
        """
        place = self.size_bytes
        self.append(header)
        taken_bytes = 0
        try:
            while taken_bytes < payload_bytes:
                left_bytes = payload_bytes - taken_bytes
                moved_bytes = os.splice(pipe, self._descriptor, left_bytes, offset_dst=self.size_bytes + taken_bytes)
                if moved_bytes == 0:
                    break
                taken_bytes += moved_bytes
        except OSError:
            pass  # A full disk: the next piece finds none of it.
        if taken_bytes < payload_bytes:
            self._end_record(place, header, taken_bytes)
        else:
            self.size_bytes += taken_bytes
        return taken_bytes

    def end_unfinished(self) -> None:
        """End the file behind its last record; one that was cut short keeps what it has."""
        place = _FILE_HEADER.size
        while (following := self._behind_record_at(place)) is not None:
            place = following
        header = os.pread(self._descriptor, HEADER.size, place)
        is_record = len(header) == HEADER.size and HEADER.unpack(header)[1] <= MOST_PAYLOAD_BYTES
        self._end_record(place, header, self.size_bytes - place - HEADER.size if is_record else 0)

    def _end_record(self, place: int, header: bytes, payload_bytes: int) -> None:
        if payload_bytes > 0:
            os.pwrite(self._descriptor, shortened(header, payload_bytes), place)
            place += HEADER.size + payload_bytes
        os.ftruncate(self._descriptor, place)
        self.size_bytes = place

    def close(self) -> None:
        os.close(self._descriptor)

    def _behind_record_at(self, place: int) -> int | None:
        header = os.pread(self._descriptor, HEADER.size, place)
        if len(header) < HEADER.size:
            return None
        payload_bytes: int = HEADER.unpack(header)[1]
        following = place + HEADER.size + payload_bytes
        return following if payload_bytes <= MOST_PAYLOAD_BYTES and following <= self.size_bytes else None


def _waiting_bytes(pipe: int) -> int:
    found = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, found)
    return found[0]


def stored(path: Path, offset: int = 0, chunk_bytes: int = 1 << 16) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of what a log holds now, from an offset on; a jump of offsets is a gap."""
    files = _open_both(path)
    try:
        for file in files:
            offset = max(offset, file.base)
            while data := file.read(offset, chunk_bytes) if file.holds(offset) else b"":
                yield offset, data
                offset += len(data)
    finally:
        for file in files:
            file.close()


def _open_both(path: Path) -> list[_LogFile]:
    """Open the two files of one moment: if the log is rotated between the two openings, they do not join, so again."""
    while True:
        found = [_LogFile.open(part, is_read_only=True) for part in (path.with_suffix(".1"), path)]
        files = [file for file in found if file is not None]
        if len(files) < len(found) or files[0].end == files[1].base:
            return files
        for file in files:
            file.close()
