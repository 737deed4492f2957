"""What happened, in order: written by the database itself with each change, so that nobody can forget to.

The newest ten thousand are kept. It refuses to know who may see which.
"""

import sqlite3
import time

from pgpu.ledger.connection import Connections
from pgpu.model import Event
from pgpu.model.text import escape_undecodable


class Events:
    """The ledger's bulletin."""

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
        """Return events behind a number, oldest first.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        statement = "SELECT * FROM events WHERE sequence > ? ORDER BY sequence LIMIT ?"
        with self._connections.reading() as connection:
            return [_event_of(row) for row in connection.execute(statement, (sequence, most))]

    def note(self, kind: str, message: str, *, job_id: str | None = None, owner_uid: int | None = None) -> None:
        """Add an event that is no change of a job.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        with self._connections.writing() as connection:
            connection.execute(
                "INSERT INTO events (at, kind, job_id, owner_uid, message) VALUES (?, ?, ?, ?, ?)",
                (time.time(), kind, job_id, owner_uid, escape_undecodable(message)),
            )


def _event_of(row: sqlite3.Row) -> Event:
    return Event(row["sequence"], row["at"], row["kind"], row["job_id"], row["owner_uid"], row["state"], row["message"])
