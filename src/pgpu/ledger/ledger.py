"""Public interface of the ledger: transactions, look-ups of single jobs, tables with transactions of their own, migration."""

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pgpu.errors import JobNotFoundError, LedgerError
from pgpu.ledger.change_watch import CachedRead, CommitCounter
from pgpu.ledger.charges import monotonic_now
from pgpu.ledger.decision import INHERITANCE_OF_JOB, Decision, read_environment
from pgpu.ledger.functions import Functions
from pgpu.ledger.rows import SELECT, SELECT_SPEC, Entry, Moment, spec_of
from pgpu.ledger.schema import ADDITIONS, MIGRATIONS, NEW_OBJECTS, VERSION
from pgpu.ledger.small_tables import Events, FactTable, Tokens
from pgpu.ledger.sqlite_connections import BUSY_TIMEOUT_SECONDS, Connections
from pgpu.ledger.view import LIVE, NOT_FINAL, LedgerView, Waiting, shared_entry
from pgpu.model import Job, JobSpec
from pgpu.units import composed, is_text

T = TypeVar("T")


class Ledger:
    """Every job and lease of one state directory.

    Safe for use by many threads and processes. Every method may raise `LedgerError`.
    """

    def __init__(
        self,
        path: Path,
        busy_timeout_seconds: float = BUSY_TIMEOUT_SECONDS,
        now: Callable[[], Moment] = monotonic_now,
    ) -> None:
        """Take the path; the file is created at first use.

        Args:
            path: Of the database.
            busy_timeout_seconds: How long a writer waits for another one.
            now: Clock by which leases are charged.
        """
        self.path = path
        self._now = now
        self._connections = Connections(path, self._prepare, busy_timeout_seconds)
        self._commits = CommitCounter(path)
        self._shrunk_at: int | None = None
        self._waiting_seen: dict[tuple[Any, ...], Waiting] = {}
        self.facts = FactTable(self._connections)
        self.tokens = Tokens(self._connections)
        self.events = Events(self._connections)
        self.functions = Functions(self._connections)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # Called once with each connection; it takes no write lock if the schema is the newest.
        connection.row_factory = sqlite3.Row
        migrate(connection, self.path)

    def refuse_to_make(self) -> None:
        """Never create the file from now on: a process that used a removed ledger must not continue with an empty one."""
        self._connections.refuse_to_make()

    def refuse_if_gone(self) -> None:
        """Check that the file exists; takes microseconds.

        Raises:
            LedgerGoneError: It does not exist.
        """
        self._connections.refuse_if_gone()

    def cached(self, read: Callable[[], T]) -> CachedRead[T]:
        """Return a read of this ledger that is repeated only after a commit of any process; takes one inotify instance."""
        return CachedRead(self._commits, read)

    @contextmanager
    def decision(self) -> Iterator[Decision]:
        """Start a decision, excluding all other writers. Commits when the block is left, rolls back if an error leaves it."""
        with self._connections.writing() as connection:
            yield Decision(connection, self._waiting_seen, self._now)

    @contextmanager
    def view(self) -> Iterator[LedgerView]:
        """Start a read transaction on one snapshot; it does not block writers."""
        with self._connections.reading() as connection:
            yield LedgerView(connection, self._waiting_seen, self._now)

    @contextmanager
    def rehearsal(self, change: Callable[[Decision], object]) -> Iterator[LedgerView]:
        """Return a view of what a decision would leave, in a copy of the ledger: nothing is stored, and no writer waits.

        Raises:
            PgpuError: As `change`.
        """
        with self._connections.rehearsing() as connection:
            decision = Decision(connection, self._waiting_seen, self._now)
            change(decision)
            yield decision

    def entries(self, *, include_final: bool) -> list[Entry]:
        """Return jobs, oldest first: all, or only the live ones."""
        where = "" if include_final else f"WHERE {LIVE}"
        return self._entries(f"{where} ORDER BY sequence", ())

    def page(
        self, after: int, most: int | None, *, seen_by: int | None, include_final: bool
    ) -> tuple[list[Entry], dict[int, int]]:
        """Return one page of jobs, oldest first: all that are not final, and optionally final ones.

        Args:
            after: Start behind this `Entry.sequence`.
            most: Size of the page; None for all.
            seen_by: User whose list it is: of others' jobs no final ones, and of those that wait and ask for the same only
                the oldest; None for all jobs of all users.
            include_final: Whether to return final jobs.

        Returns:
            The entries, and by sequence how many waiting jobs of other users one of them stands for.
        """
        ended = "AND owner_uid = ifnull(:seen_by, owner_uid)" if include_final else "AND FALSE"
        clause = f"""WHERE sequence > :after AND ({NOT_FINAL} OR TRUE {ended}) AND (:seen_by IS NULL OR owner_uid = :seen_by
            OR state != 'waiting' OR sequence IN (SELECT value FROM json_each(:alike))) ORDER BY sequence LIMIT :most"""  # noqa: S608 - words of our own
        with self.view() as view:
            counts = {} if seen_by is None else view.alike_waiting(seen_by)
            # To SQLite a negative LIMIT is none.
            limit, alike = -1 if most is None else most, json.dumps(list(counts))
            words = {"after": after, "seen_by": seen_by, "most": limit, "alike": alike}
            return view.entries_where(clause, words), counts

    def entry(self, job_id: str) -> Entry:
        """Return one job by its full id.

        Raises:
            JobNotFoundError: It does not exist.
        """
        found = self._entries("WHERE id = ?", (job_id,))
        if not found:
            raise JobNotFoundError(f"no job {job_id}")
        return found[0]

    def entries_of(self, job_ids: Sequence[str]) -> list[Entry]:
        """Return several jobs by their full ids, in this order; those that do not exist are left out."""
        with self.view() as view:
            return view.entries_of(job_ids)

    def job(self, job_id: str) -> Job:
        """Return the job of an entry.

        Raises:
            JobNotFoundError: It does not exist.
        """
        return self.entry(job_id).job

    def spec(self, job_id: str) -> JobSpec:
        """Return the spec of a job as it was submitted; those of entries are abridged where they are long.

        Raises:
            JobNotFoundError: It does not exist.
        """
        found = self._connections.rows(SELECT_SPEC, (job_id,))
        if not found:
            raise JobNotFoundError(f"no job {job_id}")
        return spec_of(found[0])

    def first_waiting(self, gpu_model: str | None) -> str | None:
        with self.view() as view:
            return view.first_waiting(gpu_model)

    def waits(self, job_id: str) -> bool:
        """Whether this job exists and waits."""
        return bool(self._connections.rows("SELECT 1 FROM jobs WHERE id = ? AND state = 'waiting'", (job_id,)))

    def find(self, id_or_name: str, owner_uid: int | None = None) -> Entry:
        """Return the job with this id, else the newest with this name, else the one with an id that begins with it.

        Args:
            id_or_name: Id, name or beginning of an id.
            owner_uid: Only jobs of this user; None for all users.

        Raises:
            JobNotFoundError: None or several match.
        """
        missing = JobNotFoundError(f"no job has the id or name {id_or_name!r}", hint="`pgpu ps --all` lists them")
        id_or_name = composed(id_or_name)
        # A string that is not UTF-8 cannot be bound as a parameter, and nothing has it as its name.
        if not is_text(id_or_name):
            raise missing
        # In two queries: ids have an index, and with `OR name` SQLite would scan all jobs for each of an array's ids.
        for named in ("id = ?1", "name = ?1"):
            clause = f"WHERE {named} AND owner_uid = ifnull(?2, owner_uid) ORDER BY sequence DESC LIMIT 1"
            if found := self._entries(clause, (id_or_name, owner_uid)):
                return found[0]
        # Not LIKE: `%` and `_` would match anything.
        clause = "WHERE substr(id, 1, length(?1)) = ?1 AND owner_uid = ifnull(?2, owner_uid) LIMIT 2"
        begun = self._entries(clause, (id_or_name, owner_uid)) if id_or_name else []
        if len(begun) > 1:
            raise JobNotFoundError(f"several jobs' ids begin with {id_or_name}", hint="write more of the id")
        if not begun:
            raise missing
        return begun[0]

    def members(self, word: str, owner_uid: int | None = None) -> list[str]:
        """Return the ids of an array's jobs, or the id of the one job that `find` returns.

        Args:
            word: Id or name of a job; else id of an array, the name it was submitted with, or a beginning of its id.
            owner_uid: As for `find`.

        Raises:
            JobNotFoundError: None or several match.
        """
        word = composed(word)
        with self.view() as view:
            elements = view.elements(word, owner_uid)
        try:
            job = self.find(word, owner_uid).job
        except JobNotFoundError:
            if not elements:
                raise
            return elements
        return [job.id] if word in {job.id, job.spec.name} or not elements else elements

    def inheritance(self, job_id: str) -> tuple[tuple[tuple[str, str], ...], str | None]:
        """Return what a job has from the process that submitted it, as `Decision.add` got it.

        Returns:
            The environment, empty once the job is final, and `inherited`, None for a job that an older pgpu added.
        """
        for words, inherited in self._connections.rows(INHERITANCE_OF_JOB, (job_id,)):
            return () if words is None else read_environment(words), inherited
        return (), None

    def shrink(self) -> None:
        """Give free pages, the log and idle connections back; does nothing until a process has committed since."""
        count = self._commits.count()
        if count != self._shrunk_at and self._connections.shrink():
            self._shrunk_at = count

    def close(self) -> None:
        """Close the connections of this process; the next use opens new ones."""
        self._connections.close()
        self._commits.close()

    def _entries(self, clause: str, arguments: Sequence[str | int | None]) -> list[Entry]:
        return [shared_entry(row) for row in self._connections.rows(f"{SELECT} {clause}", arguments)]


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Migrate the tables from any older version to this one, in one transaction, with a copy of the old ledger beside it.

    Raises:
        LedgerError: A newer pgpu wrote this ledger.
        sqlite3.Error: SQLite failed; nothing was changed.
    """
    if _version(connection, path) == VERSION and not _additions(connection):
        return
    if connection.execute("PRAGMA auto_vacuum").fetchone()[0] == 0:
        _make_shrinkable(connection)
    # The version is read again under the write lock: another process may have migrated since.
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection, path)
        if 0 < version < VERSION:
            _back_up(path, version)
        for script in MIGRATIONS[version:]:
            # Statement by statement: `executescript` would commit the transaction first.
            for statement in script.split(";\n"):
                if statement.strip():
                    connection.execute(statement)
        for statement in _additions(connection):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:  # KeyboardInterrupt, too: an open transaction would block every other writer.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _make_shrinkable(connection: sqlite3.Connection) -> None:
    """Rewrite a ledger of a version that never gave pages back; takes seconds for each GB, and as much room on the disk."""
    try:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("VACUUM")
    except sqlite3.OperationalError as exc:
        if exc.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise  # the caller tries again
        # There is no room: the ledger stays as it is.


def _back_up(path: Path, version: int) -> None:
    """Copy a ledger, as it is on disk, to a file that only its owner may read, for a return to the release before."""
    copy = path.with_name(f"{path.name}.version-{version}")
    copy.unlink(missing_ok=True)  # of an attempt that failed
    os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def _additions(connection: sqlite3.Connection) -> list[str]:
    """Return the statements that make what is missing of `ADDITIONS` and `NEW_OBJECTS`."""
    tables = json.dumps([table for table, _, _ in ADDITIONS])
    statement = (
        "SELECT t.value, c.name FROM json_each(?) AS t JOIN pragma_table_info(t.value) AS c"
        " UNION SELECT name, NULL FROM sqlite_schema"
    )
    present = {tuple(row) for row in connection.execute(statement, (tables,))}
    columns = [
        f"ALTER TABLE {table} ADD COLUMN {name} {kind}"
        for table, name, kind in ADDITIONS
        if (table, name) not in present
    ]
    return [*columns, *(made for name, made in NEW_OBJECTS.items() if (name, None) not in present)]


def _version(connection: sqlite3.Connection, path: Path) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise LedgerError(
            f"{path} was written by a newer pgpu (version {version}, this one reads up to {VERSION})",
            hint="update pgpu, or choose another --state-dir",
        )
    return version
