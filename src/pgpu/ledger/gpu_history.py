"""The last week of each GPU, a row a minute, in a SQLite file of its own beside the ledger.

The agents write it (`engine.history.gpu_recorder`); commands and the dashboard read it. It decides nothing: a write that fails
drops its rows, and a damaged file is removed and begun anew. A row has some 20 bytes, and SQLite holds the file below
`MOST_BYTES`, so 50 GPUs that are used all week fit. In WAL mode readers and the writer do not wait for each other; without any
sync a write never waits for the disk, and a power failure may cost the file.
"""

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from pgpu.model import GpuSeries
from pgpu.structs import Struct

FILE_NAME = "gpu-history.sqlite"
KEPT_SECONDS = 7 * 86_400
MINUTE_SECONDS = 60
MOST_BYTES = 60 << 20
"""Of the file; its journal has some megabytes more."""

_PAGE_BYTES = 4096
_BUSY_SECONDS = 0.05
_MIB = 1 << 20

_Row = tuple[int, int, int, int | None]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS gpus (number INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS minutes (
    minute INTEGER, gpu INTEGER, reserved_mib INTEGER NOT NULL, used_mib INTEGER NOT NULL, busy_percent INTEGER,
    PRIMARY KEY (minute, gpu)
) WITHOUT ROWID;
"""
_BY_GPU = """
SELECT uuid, minute, reserved_mib, used_mib, busy_percent FROM minutes JOIN gpus ON gpu = number
WHERE minute >= ? AND uuid = ifnull(?, uuid) ORDER BY uuid, minute
"""
_TOTAL = """
SELECT minute, sum(reserved_mib), sum(used_mib), cast(round(avg(busy_percent)) AS INTEGER) FROM minutes
WHERE minute >= ? GROUP BY minute ORDER BY minute
"""


class GpuMinute(Struct, frozen=True):
    """Means of one GPU over a minute."""

    gpu_uuid: str
    reserved_bytes: int
    used_bytes: int
    busy_percent: int | None
    """None where the driver does not report it."""


class GpuHistory:
    """The file of one state directory; each call opens and closes it."""

    def __init__(self, state_directory: Path, most_bytes: int = MOST_BYTES) -> None:
        self.path = state_directory / FILE_NAME
        self._most_bytes = most_bytes

    def add(self, minute: int, rows: Iterable[GpuMinute]) -> None:
        """Store one minute, and delete those older than a week or in the future; drops the rows if the file cannot be written.

        Without a row of the last week nothing is deleted: the clock may be wrong for a moment.

        Args:
            minute: Since the epoch.
            rows: One for each GPU that a lease held.
        """
        with suppress(OSError, sqlite3.Error):
            try:
                self._write(minute, rows)
            except sqlite3.DatabaseError as exc:
                # Its primary code: those of locks, space and permissions say nothing about the content.
                if exc.sqlite_errorcode & 0xFF not in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
                    raise
                for ending in ("", "-wal", "-shm"):
                    self.path.with_name(f"{FILE_NAME}{ending}").unlink(missing_ok=True)
                self._write(minute, rows)

    def _write(self, minute: int, rows: Iterable[GpuMinute]) -> None:
        with suppress(FileExistsError):  # SQLite gives its journal the mode of the database.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(self.path, timeout=_BUSY_SECONDS)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute(f"PRAGMA max_page_count = {self._most_bytes // _PAGE_BYTES}")
            connection.executescript(_SCHEMA)
            with connection:
                week = minute - KEPT_SECONDS // MINUTE_SECONDS, minute
                if connection.execute("SELECT 1 FROM minutes WHERE minute BETWEEN ? AND ? LIMIT 1", week).fetchone():
                    connection.execute("DELETE FROM minutes WHERE minute < ? OR minute > ?", week)
                for row in rows:
                    connection.execute("INSERT OR IGNORE INTO gpus (uuid) VALUES (?)", (row.gpu_uuid,))
                    # Two agents of one minute, one after the other: the second one's means stay.
                    connection.execute(
                        "INSERT OR REPLACE INTO minutes SELECT ?, number, ?, ?, ? FROM gpus WHERE uuid = ?",
                        (minute, row.reserved_bytes // _MIB, row.used_bytes // _MIB, row.busy_percent, row.gpu_uuid),
                    )

    def series(self, since_seconds: float, gpu_uuid: str | None = None) -> list[GpuSeries]:
        """Return the minutes of each GPU, or of one, from a time on; empty without a readable file."""
        columns: dict[str, list[_Row]] = {}
        for uuid, *row in self._read(_BY_GPU, since_seconds, gpu_uuid):
            columns.setdefault(uuid, []).append(tuple(row))
        return [_series(uuid, rows) for uuid, rows in columns.items()]

    def total(self, since_seconds: float) -> GpuSeries:
        """Return the minutes of all GPUs together: sums of memory, and the mean of the busy shares of those that a lease held."""
        return _series("", self._read(_TOTAL, since_seconds))

    def _read(self, query: str, since_seconds: float, *words: str | None) -> list[Any]:
        with suppress(sqlite3.Error):
            # Read-only: without a file, none is made.
            address = f"{self.path.absolute().as_uri()}?mode=ro"
            with closing(sqlite3.connect(address, timeout=_BUSY_SECONDS, uri=True)) as connection:
                return connection.execute(query, (int(since_seconds // MINUTE_SECONDS), *words)).fetchall()
        return []


def _series(uuid: str, rows: list[_Row]) -> GpuSeries:
    minutes, reserved, used, busy = zip(*rows, strict=True) if rows else ((), (), (), ())
    return GpuSeries(
        uuid,
        tuple(minute * MINUTE_SECONDS for minute in minutes),
        tuple(mib * _MIB for mib in reserved),
        tuple(mib * _MIB for mib in used),
        busy,
    )
