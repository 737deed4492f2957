"""Small tables with one transaction per method: facts (text by key), the event log, and users' tokens.

Facts are results worth keeping, such as passed self-tests. Events are written by triggers with each change, and the newest ten
thousand are kept. Of tokens only digests are stored, so no token can be read from the ledger.
"""

import time
from dataclasses import dataclass

from pgpu.ledger.sqlite_connections import Connections
from pgpu.model import Event
from pgpu.model.text import escape_undecodable

_FORGET = "DELETE FROM facts WHERE substr(key, 1, length(?1)) = ?1 AND written_at <= ?2"


class Facts:
    """Text by key."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def get(self, key: str) -> str | None:
        """Return the text of a key; None if there is none.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        with self._connections.reading() as connection:
            row = connection.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

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
            connection.execute(_FORGET, (prefix, now_seconds - kept_seconds))
            connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", (prefix + name, value, now_seconds))


class Events:
    """The event log."""

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


@dataclass(frozen=True, slots=True)
class Token:
    """A user's token, without its secret part."""

    id: str
    uid: int
    digest: str
    """Of its secret part."""

    created_at_seconds: float


class Tokens:
    """Tokens by id."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def put(self, token_id: str, uid: int, digest: str) -> None:
        """Store a new token.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        with self._connections.writing() as connection:
            connection.execute("INSERT INTO tokens VALUES (?, ?, ?, ?)", (token_id, uid, digest, time.time()))

    def get(self, token_id: str) -> Token | None:
        """Return one token; None if there is none."""
        with self._connections.reading() as connection:
            row = connection.execute("SELECT * FROM tokens WHERE id = ?", (token_id,)).fetchone()
        return None if row is None else Token(*row)

    def all(self) -> list[Token]:
        """Return every token, oldest first."""
        with self._connections.reading() as connection:
            return [Token(*row) for row in connection.execute("SELECT * FROM tokens ORDER BY created_at, id")]

    def remove(self, token_id: str) -> bool:
        """Delete a token; False if there was none."""
        with self._connections.writing() as connection:
            return connection.execute("DELETE FROM tokens WHERE id = ?", (token_id,)).rowcount > 0
