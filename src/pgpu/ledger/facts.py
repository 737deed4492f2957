"""Small things found out once and worth keeping: self-tests that passed, bytes of a context, by key.

It refuses to know what they mean, and forgets nothing by itself.
"""

import time

from pgpu.ledger.connection import Connections


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
