"""Small tables: facts (text by key), the event log, users' tokens, Kubernetes claims, and functions' replicas.

Facts are results worth keeping, such as passed self-tests. Events are written by triggers with each change, and the newest ten
thousand are kept. Of tokens only digests are stored, so no token can be read from the ledger. Claims outlive their jobs: a
reboot ends every job, but the orchestrator assumes that prepared claims still exist, so they are granted again. Replicas and
cold starts are written by the gateway, which finds its replicas here after a restart; whether a replica is running is recorded
in the entry of its job.
"""

import json
import sqlite3
import time
from typing import Any

from pgpu.errors import FunctionNotFoundError
from pgpu.ledger.sqlite_connections import Connections
from pgpu.model import Claim, ColdStart, Event, Replica, ReplicaState, SharingWish, Slice
from pgpu.structs import Struct, to_builtins
from pgpu.units import escape_undecodable

# Not LIKE: a prefix may contain `%` and `_`.
_FORGET = "DELETE FROM facts WHERE substr(key, 1, length(?1)) = ?1 AND written_at <= ?2"


class FactTable:
    """Text by key."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def get(self, key: str) -> str | None:
        """Return the text of a key; None if there is none.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        found = self._connections.rows("SELECT value FROM facts WHERE key = ?", (key,))
        return str(found[0][0]) if found else None

    def put(self, key: str, value: str) -> None:
        """Store a text under a key, replacing the old one.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        with self._connections.writing() as connection:
            connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", (key, value, time.time()))

    def put_for(self, prefix: str, name: str, value: str, kept_seconds: float) -> None:
        """Store a text under a prefix and a name, and delete older texts of that prefix that have expired.

        Args:
            prefix: Common to the keys of such texts, and to no others.
            name: The rest of the key.
            value: The text.
            kept_seconds: Lifetime of such texts; 0 keeps only this one.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        now_seconds = time.time()
        with self._connections.writing() as connection:
            # Before the insert: with a lifetime of 0 the new text would be deleted as well.
            connection.execute(_FORGET, (prefix, now_seconds - kept_seconds))
            connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", (prefix + name, value, now_seconds))


class Events:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def newest(self) -> int:
        """Return the number of the newest event; 0 before the first.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        with self._connections.reading() as connection:
            row = connection.execute("SELECT max(sequence) FROM events").fetchone()
        return int(row[0] or 0)

    def after(self, sequence: int, most: int) -> list[Event]:
        """Return up to `most` events after a number, oldest first.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        statement = "SELECT * FROM events WHERE sequence > ? ORDER BY sequence LIMIT ?"
        with self._connections.reading() as connection:
            rows = connection.execute(statement, (sequence, most)).fetchall()
        columns = ("sequence", "at", "kind", "job_id", "owner_uid", "state", "message")
        return [Event(*(row[name] for name in columns)) for row in rows]

    def note(self, kind: str, message: str, *, job_id: str | None = None, owner_uid: int | None = None) -> None:
        """Add an event that no trigger writes.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        with self._connections.writing() as connection:
            connection.execute(
                "INSERT INTO events (at, kind, job_id, owner_uid, message) VALUES (?, ?, ?, ?, ?)",
                (time.time(), kind, job_id, owner_uid, escape_undecodable(message)),
            )


# The column has a token's digest and, after `@`, the time of its end: a version that knows no ends finds no such token valid.
HAS_EXPIRED = "(instr(digest, '@') > 0 AND CAST(substr(digest, instr(digest, '@') + 1) AS REAL) <= ?1)"


def digest_with_end(digest: str, expires_at_seconds: float | None) -> str:
    """Return the content of a token's column `digest`; None for a token without an end."""
    return digest if expires_at_seconds is None else f"{digest}@{expires_at_seconds!r}"


def split_end(stored: str) -> tuple[str, float | None]:
    """Return the digest and the end in the content of such a column."""
    digest, _, end = stored.partition("@")
    return digest, float(end) if end else None


class Token(Struct, frozen=True):
    """A user's token, without its secret part."""

    id: str
    uid: int
    digest: str
    """Of its secret part."""

    expires_at_seconds: float | None
    """None for a token without an end."""

    created_at_seconds: float


class Tokens:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def put(self, token_id: str, uid: int, digest: str, expires_at_seconds: float | None = None) -> None:
        """Store a new token, and delete those that have expired.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        with self._connections.writing() as connection:
            now_seconds = time.time()
            connection.execute(f"DELETE FROM tokens WHERE {HAS_EXPIRED}", (now_seconds,))  # noqa: S608 - words of our own
            row = (token_id, uid, digest_with_end(digest, expires_at_seconds), now_seconds)
            connection.execute("INSERT INTO tokens VALUES (?, ?, ?, ?)", row)

    def get(self, token_id: str) -> Token | None:
        """Return one token; None if there is none, or it has expired."""
        return next(iter(self._valid("AND id = ?2", token_id)), None)

    def all(self) -> list[Token]:
        """Return every valid token, oldest first."""
        return self._valid()

    def _valid(self, condition: str = "", *values: str) -> list[Token]:
        statement = f"SELECT * FROM tokens WHERE NOT {HAS_EXPIRED} {condition} ORDER BY created_at, id"  # noqa: S608 - words of our own
        with self._connections.reading() as connection:
            rows = connection.execute(statement, (time.time(), *values)).fetchall()
        return [Token(token_id, uid, *split_end(stored), created_at) for token_id, uid, stored, created_at in rows]

    def remove(self, token_id: str) -> bool:
        """Delete a token; False if there was none."""
        with self._connections.writing() as connection:
            return connection.execute("DELETE FROM tokens WHERE id = ?", (token_id,)).rowcount > 0


class ClaimRecord(Struct, frozen=True):
    """One claim and its current job."""

    claim: Claim
    job_id: str

    is_freed: bool
    """Whether it is freed and only waits until its memory is free."""


class HeldClaims:
    """Claims by uid, within one transaction; methods that write are for decisions."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def get(self, uid: str) -> ClaimRecord | None:
        """Return one claim; None if it is not held."""
        row = self._connection.execute("SELECT * FROM held_claims WHERE uid = ?", (uid,)).fetchone()
        return None if row is None else _record(row)

    def all(self) -> list[ClaimRecord]:
        """Return every claim, the oldest first."""
        return [_record(row) for row in self._connection.execute("SELECT * FROM held_claims ORDER BY held_at, uid")]

    def put(self, claim: Claim, job_id: str, now_seconds: float) -> None:
        """Store a claim, or replace its job."""
        # `held_at` stays when the job is replaced, and with it the order of the claims.
        self._connection.execute(
            "INSERT INTO held_claims (uid, claim, job_id, held_at) VALUES (?1, ?2, ?3, ?4)"
            " ON CONFLICT (uid) DO UPDATE SET claim = ?2, job_id = ?3",
            (claim.uid, json.dumps(to_builtins(claim)), job_id, now_seconds),
        )

    def free(self, uid: str, now_seconds: float) -> None:
        """Mark it as freed; it is deleted once its memory is free."""
        self._connection.execute("UPDATE held_claims SET freed_at = ? WHERE uid = ?", (now_seconds, uid))

    def forget(self, uid: str) -> None:
        """Delete it; does nothing if it does not exist."""
        self._connection.execute("DELETE FROM held_claims WHERE uid = ?", (uid,))


def _record(row: sqlite3.Row) -> ClaimRecord:
    fields: dict[str, Any] = json.loads(row["claim"])
    slices = tuple(Slice(**part) for part in fields.pop("slices"))
    claim = Claim(**{**fields, "slices": slices, "sharing": SharingWish(fields["sharing"])})
    return ClaimRecord(claim, row["job_id"], row["freed_at"] is not None)


class Replicas:
    """Replicas by job id; every method may raise `LedgerError`."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def note(self, job_id: str, state: ReplicaState) -> bool:
        """Set a replica's state; False if it does not exist any more."""
        with self._connections.writing() as connection:
            statement = "UPDATE replicas SET state = ? WHERE job_id = ?"
            return connection.execute(statement, (state.value, job_id)).rowcount > 0

    def put(self, replica: Replica, created_at_seconds: float | None = None) -> None:
        """Store a new replica.

        Args:
            replica: Not stored yet.
            created_at_seconds: Of the version that it serves; None for any version of this number.

        Raises:
            FunctionNotFoundError: Its version does not exist any more.
        """
        row = (replica.job_id, replica.function, replica.version, replica.socket_directory, replica.state.value)
        with self._connections.writing() as connection:
            # In the same transaction: meanwhile the function may have been removed, and deployed again with other versions.
            _check_version(connection, replica.function, replica.version, created_at_seconds)
            connection.execute("INSERT INTO replicas VALUES (?, ?, ?, ?, ?)", row)

    def all(self, function: str | None = None) -> list[Replica]:
        """Return the replicas of one function, or of all."""
        statement = "SELECT * FROM replicas WHERE function = ifnull(?, function) ORDER BY function, version, job_id"
        with self._connections.reading() as connection:
            rows = connection.execute(statement, (function,)).fetchall()
        return [
            Replica(row["job_id"], row["function"], row["version"], row["socket_directory"], ReplicaState(row["state"]))
            for row in rows
        ]

    def remove(self, job_id: str) -> bool:
        """Delete a replica; False if there was none."""
        with self._connections.writing() as connection:
            return connection.execute("DELETE FROM replicas WHERE job_id = ?", (job_id,)).rowcount > 0

    def note_start(self, start: ColdStart) -> None:
        """Store a cold start; the newest ten thousand of all functions are kept.

        Raises:
            FunctionNotFoundError: Its version does not exist any more.
        """
        row = (start.function, start.version, start.job_id, start.at_seconds, json.dumps(start.phases))
        with self._connections.writing() as connection:
            _check_version(connection, start.function, start.version)
            connection.execute(
                "INSERT INTO cold_starts (function, version, job_id, at, phases) VALUES (?, ?, ?, ?, ?)", row
            )

    def starts(self, function: str, most: int) -> list[ColdStart]:
        """Return the last `most` cold starts of a function, newest first."""
        statement = (
            "SELECT function, version, job_id, at, phases FROM cold_starts"
            " WHERE function = ? ORDER BY sequence DESC LIMIT ?"
        )
        with self._connections.reading() as connection:
            rows = connection.execute(statement, (function, most)).fetchall()
        return [
            ColdStart(
                row["function"],
                row["version"],
                row["job_id"],
                row["at"],
                tuple((str(name), float(seconds)) for name, seconds in json.loads(row["phases"])),
            )
            for row in rows
        ]


def _check_version(
    connection: sqlite3.Connection, function: str, version: int, created_at_seconds: float | None = None
) -> None:
    # Version numbers begin at 1 again after a function was removed; the time of creation distinguishes them.
    statement = "SELECT created_at FROM function_versions WHERE function = ? AND number = ?"
    row = connection.execute(statement, (function, version)).fetchone()
    if row is None or created_at_seconds not in {None, row["created_at"]}:
        raise FunctionNotFoundError(f"there is no {function}@{version} any more")
