"""How this process reaches the database: durable, one connection for each transaction, and every error ours.

It refuses to know what the tables mean.
"""

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pgpu.errors import LedgerError, LedgerGoneError, RequestError
from pgpu.model.text import escape_undecodable

BUSY_TIMEOUT_SECONDS = 30.0
"""How long a writer waits for the writer before it: a decision takes milliseconds, so this is a stuck process."""

_PAUSES_SECONDS = (0.0005, 0.004)

_while_creating = threading.Lock()
"""No thread of this process connects between another one's creation of the file and the close of its descriptor."""

_HINTS = {
    "SQLITE_FULL": "free some space on its file system",
    "SQLITE_IOERR": "look for errors of its disk in the kernel's log (dmesg), and for free space",
    "SQLITE_READONLY": "make it writable for you, or choose another --state-dir",
    "SQLITE_PERM": "make it readable and writable for you, or choose another --state-dir",
    "SQLITE_AUTH": "make it readable and writable for you, or choose another --state-dir",
    "SQLITE_CANTOPEN": "make its directory writable for you, or choose another --state-dir",
    "SQLITE_CORRUPT": "move it away (no job is running on its word then), or choose another --state-dir",
    "SQLITE_NOTADB": "it is no pgpu ledger: move it away, or choose another --state-dir",
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
    """Turn any error of SQLite into one clear line and what to do about it."""
    name = str(getattr(exc, "sqlite_errorname", None) or "")
    primary = "_".join(name.split("_")[:2])
    return LedgerError(f"the ledger {path} cannot be used: {exc}", hint=_HINTS.get(primary))


_MOST_IDLE = 8
"""So many connections wait for the next transactions: few processes have more at a time, and each holds descriptors."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """One connection, and which file it has open."""

    connection: sqlite3.Connection
    identity: tuple[int, int] | None


class Connections:
    """The SQLite connections of this process; a thread has one for each transaction, and no longer."""

    def __init__(
        self,
        path: Path,
        prepare: Callable[[sqlite3.Connection], None],
        busy_timeout_seconds: float = BUSY_TIMEOUT_SECONDS,
    ) -> None:
        """Open nothing yet.

        Args:
            path: The database.
            prepare: Called once with each new connection.
            busy_timeout_seconds: How long a writer waits for the one before it.
        """
        self._path = path
        self._prepare = prepare
        self._busy_timeout_seconds = busy_timeout_seconds
        self._may_make = True
        self._idle: list[_Opened] = []
        self._guard = threading.Lock()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One consistent view; waits for no writer, only for one that repairs the journal after a death.

        Raises:
            LedgerError: SQLite failed.
        """
        with self._transaction("BEGIN DEFERRED") as connection:
            # A deferred transaction takes its view at its first read: https://www.sqlite.org/wal.html, part 10.
            self._patiently(lambda: connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone())
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Alone among all writers of the machine; durable once left, nothing happened if an error leaves it.

        Raises:
            LedgerError: SQLite failed; nothing was changed.
            RequestError: A word is no text; nothing was changed.
        """
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    def refuse_to_make(self) -> None:
        """From now on use the database that there is, and never make one."""
        self._may_make = False

    def refuse_if_gone(self) -> None:
        """Ask the file system alone, which takes microseconds.

        Raises:
            LedgerGoneError: There is no such database.
        """
        with suppress(OSError):
            if self._path.exists():
                return
            raise LedgerGoneError(
                f"the ledger {self._path} is gone", hint="stop all jobs before you remove or move a state directory"
            )

    def close(self) -> None:
        """Close every connection that this process opened; one in use is closed once its transaction ends."""
        with self._guard:
            idle, self._idle = self._idle, []
        for opened in idle:
            opened.connection.close()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        try:
            with self._borrowed() as connection:
                self._patiently(lambda: connection.execute(begin))
                try:
                    yield connection
                    connection.execute("COMMIT")
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
        except sqlite3.Error as exc:
            raise explain_error(exc, self._path) from exc
        except UnicodeEncodeError as exc:  # Where bytes that are no text mean something, they travel as JSON.
            raise RequestError(f"{escape_undecodable(exc.object)} is no text: nothing is called so") from exc

    @contextmanager
    def _borrowed(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection for a transaction. Threads end and are not told of: none has a connection of its own."""
        idle = self._idle
        opened = self._taken(idle) or self._open()
        try:
            yield opened.connection
        finally:
            self._give_back(opened, idle)

    def _taken(self, idle: list[_Opened]) -> _Opened | None:
        """Take an idle connection, and let go of a database that was moved away: nobody reads what is written there."""
        while True:
            with self._guard:
                if not idle:
                    return None
                opened = idle.pop()
            if opened.identity == _identity(self._path):
                return opened
            opened.connection.close()

    def _give_back(self, opened: _Opened, idle: list[_Opened]) -> None:
        with self._guard:
            if idle is self._idle and len(idle) < _MOST_IDLE and not opened.connection.in_transaction:
                idle.append(opened)
                return
        opened.connection.close()

    def _open(self) -> _Opened:
        if self._may_make:
            _make_private_file(self._path)
        else:
            self.refuse_if_gone()
        connection = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            self._patiently(lambda: connection.execute("PRAGMA journal_mode = WAL"))
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            # An asker's environment may hold secrets: what is deleted is overwritten, not only forgotten.
            connection.execute("PRAGMA secure_delete = ON")
            self._patiently(lambda: self._prepare(connection))
        except BaseException:  # Ctrl-C too: a connection that is on no list is closed by nobody.
            connection.close()
            raise
        return _Opened(connection, _identity(self._path))

    def _patiently(self, act: Callable[[], object]) -> None:
        """Wait for other writers in small random steps: SQLite's own wait grows to 100 ms, too long for a waiting job."""
        deadline = time.monotonic() + self._busy_timeout_seconds
        while True:
            try:
                act()
            except sqlite3.OperationalError as exc:
                if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                threading.Event().wait(random.uniform(*_PAUSES_SECONDS))  # noqa: S311 - spreads writers, guards nothing
            else:
                return


def _identity(path: Path) -> tuple[int, int] | None:
    """Tell a file from another one of its name, without opening it; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _make_private_file(path: Path) -> None:
    """SQLite gives its journal the mode of the database, so this keeps both from other users.

    A file that is there is never opened: closing any descriptor of it drops the locks of every connection that this
    process has on it, and another process would then remove the journal under them.
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
