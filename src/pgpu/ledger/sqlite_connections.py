"""SQLite connections of this process: durable transactions, one connection for each, and SQLite errors as `LedgerError`.

The database is in WAL mode with `synchronous=FULL`: readers see a consistent snapshot without waiting, writers exclude each
other, and a commit is on disk once it returns. SQLite ignores a log with a damaged header, as it does an empty one, and would
go on with the state of the last checkpoint: such a ledger is refused.
"""

import os
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from pgpu.errors import LedgerError, LedgerGoneError, NodeError, RequestError
from pgpu.host.ownership import check_own
from pgpu.host.thread_turns import pause
from pgpu.ledger.change_watch import announce_change
from pgpu.structs import Struct
from pgpu.units import escape_undecodable

# How long a writer waits for another one. A decision takes milliseconds, so after this the other process hangs.
BUSY_TIMEOUT_SECONDS = 30.0

_PAUSES_SECONDS = (0.0005, 0.004)

# Held while the file is created, so that no thread connects before its descriptor is closed (see `_make_private_file`).
_while_creating = threading.Lock()

_HINTS = {
    "SQLITE_FULL": "free some space on its file system",
    "SQLITE_IOERR": "look for errors of its disk in the kernel's log (dmesg), and for free space",
    "SQLITE_READONLY": "make it writable for you, or choose another --state-dir",
    "SQLITE_PERM": "make it readable and writable for you, or choose another --state-dir",
    "SQLITE_AUTH": "make it readable and writable for you, or choose another --state-dir",
    "SQLITE_CANTOPEN": "make its directory writable for you, or choose another --state-dir",
    "SQLITE_CORRUPT": "stop all jobs and move it away, or choose another --state-dir",
    "SQLITE_NOTADB": "it is not a pgpu ledger: move it away, or choose another --state-dir",
    "SQLITE_BUSY": "another process holds it: look for a stopped pgpu process",
    "SQLITE_LOCKED": "another process holds it: look for a stopped pgpu process",
    "SQLITE_PROTOCOL": "its file system may not support locks (NFS?): choose a local --state-dir",
    "SQLITE_NOLFS": "its file system does not take files this large: choose another --state-dir",
    "SQLITE_TOOBIG": "the request is too long to be stored",
    "SQLITE_NOMEM": "this machine is out of memory",
    "SQLITE_SCHEMA": "another program changed its tables: move it away, or choose another --state-dir",
    "SQLITE_ERROR": "another program may have changed its tables: choose another --state-dir",
}


def explain_error(exc: sqlite3.Error, path: Path) -> LedgerError:
    """Return our error for one of SQLite, with a hint by its result code."""
    name = str(getattr(exc, "sqlite_errorname", None) or "")
    primary = "_".join(name.split("_")[:2])
    return LedgerError(f"the ledger {path} cannot be used: {exc}", hint=_HINTS.get(primary))


# Idle connections that are kept: few processes use more at a time, and each holds descriptors.
_MOST_IDLE = 8

_CACHE_KIB = 512

_MOST_JOURNAL_BYTES = 4 << 20
"""The log is cut to this length after a checkpoint; SQLite begins one at 1,000 pages."""

_FREE_PAGES = 256
"""So many free pages stay in the file for what comes next: 1 MiB."""

_PAGES_AT_ONCE = 1000
"""Free pages that one transaction gives back to the file system; in the time of it other writers wait."""

_STEPS = 16

_WAL_HEADER = struct.Struct(">6I")
_WAL_CHECKSUM = struct.Struct(">2I")
_WAL_MAGIC = 0x377F0682
"""Its lowest bit is 1 where the checksums are of big-endian words. Source: https://www.sqlite.org/fileformat2.html, part 4.1."""


class _Opened(Struct, frozen=True):
    """A connection and the identity of its file."""

    connection: sqlite3.Connection
    identity: tuple[int, int] | None


class Connections:
    """Connection pool of this process; a thread has a connection only during a transaction."""

    def __init__(
        self,
        path: Path,
        prepare: Callable[[sqlite3.Connection], None],
        busy_timeout_seconds: float = BUSY_TIMEOUT_SECONDS,
    ) -> None:
        """Create a pool; the file is opened at first use.

        Args:
            path: The database.
            prepare: Called once with each new connection.
            busy_timeout_seconds: How long a writer waits for another one.
        """
        self._path = path
        self._prepare = prepare
        self._busy_timeout_seconds = busy_timeout_seconds
        self._may_make = True
        self._idle: list[_Opened] = []
        self._guard = threading.Lock()
        # Writers of one process wait here, asleep, and not in SQLite, which would have each of them try again and again.
        self._writer = threading.Lock()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Read one consistent snapshot. Waits for no writer, except for recovery of the journal after a crash.

        Raises:
            LedgerError: SQLite failed.
        """
        with self._transaction("BEGIN DEFERRED") as connection:
            # A deferred transaction takes its view at its first read: https://www.sqlite.org/wal.html, part 10.
            self._retry_while_busy(lambda: connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone())
            yield connection

    def rows(self, statement: str, arguments: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Return all rows of one query; a single statement sees one snapshot without a transaction around it.

        Raises:
            LedgerError: SQLite failed.
            RequestError: A string is not UTF-8.
        """
        found: list[sqlite3.Row] = []
        with self._explained(), self._borrow() as connection:
            self._retry_while_busy(lambda: found.extend(connection.execute(statement, arguments).fetchall()))
        return found

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Write, excluding all other writers of the machine. Commits when the block is left, rolls back if an error leaves it.

        Raises:
            LedgerError: SQLite failed; nothing was changed.
            RequestError: A string is not UTF-8; nothing was changed.
        """
        is_writer = self._writer.acquire(blocking=False)
        # One that has to wait writes without a turn: if it waited for one with the lock, all other writers would wait with it.
        with nullcontext() if is_writer else pause():
            if not is_writer and not self._writer.acquire(timeout=self._busy_timeout_seconds):
                raise LedgerError(f"the ledger {self._path} cannot be used: it is locked", hint=_HINTS["SQLITE_BUSY"])
            try:
                with self._transaction("BEGIN IMMEDIATE") as connection:
                    before = connection.total_changes
                    yield connection
                    has_changed = connection.total_changes != before
            finally:
                self._writer.release()
        if has_changed:
            announce_change(self._path)

    @contextmanager
    def rehearsing(self) -> Iterator[sqlite3.Connection]:
        """Write into a copy in memory, which is dropped when the block is left. Excludes no writer and waits for none.

        Raises:
            LedgerError: SQLite failed.
            RequestError: A string is not UTF-8.
        """
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
            with self.reading() as connection:
                connection.backup(copy)
            with self._explained():
                self._prepare(copy)
                yield copy

    def shrink(self) -> bool:
        """Give free pages of the file, and the log, back to the file system, 64 MB at a time; other writers wait for milliseconds.

        All idle connections but one are closed: each has half a megabyte of pages.

        Returns:
            Whether nothing is left to do; False also if another process is in the way.

        Raises:
            LedgerError: SQLite failed.
        """
        with self._explained(), self._borrow() as connection:
            with self._guard:
                spare, self._idle[:] = self._idle[:], []
            for opened in spare:
                opened.connection.close()
            try:
                free = connection.execute("PRAGMA freelist_count").fetchone()[0]
                for _ in range(_FREE_PAGES, min(free, _STEPS * _PAGES_AT_ONCE), _PAGES_AT_ONCE):
                    # A step of SQLite for each page, of which `execute` would run the first.
                    connection.executescript(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})")
                is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.OperationalError as exc:
                if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                return False
            return not is_busy and free <= _STEPS * _PAGES_AT_ONCE

    def refuse_to_make(self) -> None:
        """Never create the database from now on; fail if it does not exist."""
        self._may_make = False

    def refuse_if_gone(self) -> None:
        """Check that the database exists; a call to the file system only, some microseconds.

        Raises:
            LedgerGoneError: It does not exist.
        """
        with suppress(OSError):
            if self._path.exists():
                return
            raise LedgerGoneError(
                f"the ledger {self._path} is gone", hint="stop all jobs before you remove or move a state directory"
            )

    def close(self) -> None:
        """Close every connection; one in use is closed when its transaction ends."""
        with self._guard:
            idle, self._idle = self._idle, []
        for opened in idle:
            opened.connection.close()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._explained(), self._borrow() as connection:
            self._retry_while_busy(lambda: connection.execute(begin))
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                # Ctrl-C between BEGIN and COMMIT, too: an open transaction would block every other writer.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as exc:
            raise explain_error(exc, self._path) from exc
        except UnicodeEncodeError as exc:  # Columns that may hold undecodable bytes are JSON, so this is a look-up.
            raise RequestError(f"{escape_undecodable(exc.object)} is not UTF-8: nothing has this name") from exc

    @contextmanager
    def _borrow(self) -> Iterator[sqlite3.Connection]:
        # Not one connection per thread: the end of a thread is not observable.
        idle = self._idle
        opened = self._take_idle(idle) or self._open()
        try:
            yield opened.connection
        finally:
            with self._guard:
                # Back into the pool, unless `close` has replaced it meanwhile, or ROLLBACK failed and the transaction is still open.
                is_kept = idle is self._idle and len(idle) < _MOST_IDLE and not opened.connection.in_transaction
                if is_kept:
                    idle.append(opened)
            if not is_kept:
                opened.connection.close()

    def _take_idle(self, idle: list[_Opened]) -> _Opened | None:
        # A connection to a file that is no longer at the path is closed: no reader would see its writes.
        while True:
            with self._guard:
                if not idle:
                    return None
                opened = idle.pop()
            if opened.identity == _identity(self._path):
                return opened
            opened.connection.close()

    def _open(self) -> _Opened:
        if self._may_make:
            _make_private_file(self._path)
        else:
            self.refuse_if_gone()
        try:
            # Its journals too: SQLite would recover one that another user left.
            for ending in ("", "-journal", "-wal", "-shm"):
                check_own(self._path.with_name(self._path.name + ending), "the ledger")
        except NodeError as exc:
            raise LedgerError(str(exc), hint=exc.hint) from exc
        _refuse_damaged_log(self._path)
        connection = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            # Before the first page is written; it would take the write lock later. An older ledger is rewritten with its migration.
            if self._path.stat().st_size == 0:
                self._retry_while_busy(lambda: connection.execute("PRAGMA auto_vacuum = INCREMENTAL"))
            self._retry_while_busy(lambda: connection.execute("PRAGMA journal_mode = WAL"))
            connection.execute(f"PRAGMA journal_size_limit = {_MOST_JOURNAL_BYTES}")
            connection.execute("PRAGMA synchronous = FULL")
            # SQLite's default is 2 MB for each connection, which a process with a thread for each job would hold many times.
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            connection.execute("PRAGMA foreign_keys = ON")
            # Environments of clients may hold secrets: overwrite deleted content.
            connection.execute("PRAGMA secure_delete = ON")
            self._retry_while_busy(lambda: self._prepare(connection))
        except BaseException:  # KeyboardInterrupt, too: the connection is in no list yet and would leak.
            connection.close()
            raise
        return _Opened(connection, _identity(self._path))

    def _retry_while_busy(self, act: Callable[[], object]) -> None:
        # In small random steps: SQLite's own busy handler sleeps up to 100 ms.
        deadline = time.monotonic() + self._busy_timeout_seconds
        while True:
            try:
                act()
            except sqlite3.OperationalError as exc:
                if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                import random  # noqa: PLC0415 - most transactions meet no other writer

                with pause():
                    threading.Event().wait(random.uniform(*_PAUSES_SECONDS))  # noqa: S311 - spreads writers, guards nothing
            else:
                return


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file, without opening it; None if it does not exist."""
    try:
        found = os.stat(path)  # noqa: PTH116 - called for each transaction
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _refuse_damaged_log(path: Path) -> None:
    """Raise LedgerError where a write-ahead log has a header that SQLite would take for that of an empty one.

    The header is synced before the first frame, so a crash leaves no frames behind a wrong one.
    """
    log = f"{path}-wal"
    # Read again: another process may have been writing it.
    for _ in range(2):
        try:
            with open(log, "rb") as file:  # noqa: PTH123 - called for each connection
                header, has_frames = file.read(32), bool(file.read(1))
        except OSError:  # There is none, or SQLite reports why it cannot be read.
            return
        if not has_frames or _is_sound(header):
            return
    raise LedgerError(
        f"the write-ahead log {log} of the ledger is damaged: what was written last cannot be read",
        hint="stop all jobs and restore a copy of both files, or move the log away, which loses what was written last",
    )


def _is_sound(header: bytes) -> bool:
    words = _WAL_HEADER.unpack_from(header)
    if words[0] & ~1 != _WAL_MAGIC:
        return False
    first = second = 0
    summed = words if words[0] & 1 else struct.unpack_from("<6I", header)
    for word, next_word in zip(summed[::2], summed[1::2], strict=True):
        first = (first + word + second) & 0xFFFFFFFF
        second = (second + next_word + first) & 0xFFFFFFFF
    return (first, second) == _WAL_CHECKSUM.unpack_from(header, _WAL_HEADER.size)


def _make_private_file(path: Path) -> None:
    """Create the database with mode 0600; SQLite gives its journal the same mode.

    An existing file is never opened here: closing any descriptor of it drops the POSIX locks of every connection that this
    process has on it, and another process could then delete the journal while it is in use.
    Source: https://www.sqlite.org/howtocorrupt.html, part 2.2.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _while_creating:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if not path.parent.is_dir():
            raise LedgerError(
                f"the ledger {path} cannot be opened: {path.parent} is no directory", hint="choose another --state-dir"
            ) from None
    except OSError as exc:
        raise LedgerError(
            f"the ledger {path} cannot be opened: {exc.strerror}",
            hint="make its directory writable for you, or choose another --state-dir",
        ) from exc
