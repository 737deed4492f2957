"""Small things found out once and worth keeping: self-tests that passed, bytes of a context, by key.

It refuses to know what they mean, and forgets nothing unless it is told how long to keep it.
"""

import time

from pgpu.ledger.connection import Connections

_FORGET = "DELETE FROM facts WHERE substr(key, 1, length(?1)) = ?1 AND written_at <= ?2"


class Facts:
    """Text by key, durable."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def get(self, key: str) -> str | None:
        """Return what was last put under a key; None if nothing was.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        with self._connections.reading() as connection:
            row = connection.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def put(self, key: str, value: str) -> None:
        """Keep a text under a key, instead of what was there.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        with self._connections.writing() as connection:
            connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", (key, value, time.time()))

    def put_for(self, prefix: str, name: str, value: str, kept_seconds: float) -> None:
        """Keep a text under a prefix and a name, and forget what was put under that prefix longer ago than this is kept.

        Args:
            prefix: Of the keys of such texts, and of no others.
            name: The rest of this one's key.
            value: The text.
            kept_seconds: For how long anybody believes such a text; 0 keeps this one alone.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        now_seconds = time.time()
        with self._connections.writing() as connection:
            connection.execute(_FORGET, (prefix, now_seconds - kept_seconds))
            connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", (prefix + name, value, now_seconds))
