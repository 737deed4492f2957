"""Reads the log of one job: its output as records in a file, and the older half in a second one.

The job's monitor (native/monitor/log.c) writes it, if the job has one. Every byte has an offset that never changes, counted from the job's first, so
that a reader continues there after a rotation or in another process.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from pgpu.engine.streams.records import Record, encode

_FILE_HEADER = struct.Struct(">8sQ")
_MAGIC = b"PGPULOG\x01"
_CHUNK_BYTES = 1 << 16


class _LogFile:
    """One of the two files: a header with the offset of its first byte, then records."""

    def __init__(self, descriptor: int, base: int, size_bytes: int) -> None:
        self._descriptor = descriptor
        self.base = base
        self.size_bytes = size_bytes

    @classmethod
    def open(cls, path: Path) -> "_LogFile | None":
        """Open a file; None if it does not exist or its header is incomplete."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        header = os.pread(descriptor, _FILE_HEADER.size, 0)
        if len(header) < _FILE_HEADER.size or _FILE_HEADER.unpack(header)[0] != _MAGIC:
            os.close(descriptor)
            return None
        return cls(descriptor, _FILE_HEADER.unpack(header)[1], os.fstat(descriptor).st_size)

    @property
    def end(self) -> int:
        return self.base + self.size_bytes - _FILE_HEADER.size

    def holds(self, offset: int) -> bool:
        return self.base <= offset < self.end

    def read(self, offset: int) -> bytes:
        most_bytes = min(_CHUNK_BYTES, self.end - offset)
        return os.pread(self._descriptor, most_bytes, offset - self.base + _FILE_HEADER.size)

    def close(self) -> None:
        os.close(self._descriptor)


def log_bytes(record: Record) -> bytes:
    """Return the content of a log with one record."""
    return _FILE_HEADER.pack(_MAGIC, 0) + encode(record)


def stored(path: Path, offset: int = 0, most_bytes: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of the stored output, from an offset on; a jump of offsets is a gap.

    Args:
        path: Of the newer file.
        offset: Of the first byte.
        most_bytes: Only so many of the newest bytes, which may begin within a record; None for all.
    """
    files = _open_both(path)
    try:
        if files and most_bytes is not None:
            offset = max(offset, files[-1].end - most_bytes)
        for file in files:
            offset = max(offset, file.base)
            while data := file.read(offset) if file.holds(offset) else b"":
                yield offset, data
                offset += len(data)
    finally:
        for file in files:
            file.close()


def _open_both(path: Path) -> list[_LogFile]:
    """Open the two files of one moment: if the log is rotated between the two openings, they do not join, so again."""
    while True:
        found = [_LogFile.open(part) for part in (path.with_suffix(".1"), path)]
        files = [file for file in found if file is not None]
        if len(files) < len(found) or files[0].end == files[1].base:
            return files
        for file in files:
            file.close()
