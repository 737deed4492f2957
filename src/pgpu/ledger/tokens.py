"""Who may show which token. Only digests are kept: whoever reads the ledger can show none of them.

It refuses to make a token and to judge one: it finds what was put.
"""

import time
from dataclasses import dataclass

from pgpu.ledger.connection import Connections


@dataclass(frozen=True, slots=True)
class Token:
    """One token as the ledger knows it."""

    id: str
    uid: int
    digest: str
    """Of its secret part."""

    created_at_seconds: float


class Tokens:
    """Tokens by id, durable."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def put(self, token_id: str, uid: int, digest: str) -> None:
        """Keep a new token.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        with self._connections.writing() as connection:
            connection.execute("INSERT INTO tokens VALUES (?, ?, ?, ?)", (token_id, uid, digest, time.time()))

    def get(self, token_id: str) -> Token | None:
        """Return one token; None if there is none, or none any more."""
        with self._connections.reading() as connection:
            row = connection.execute("SELECT * FROM tokens WHERE id = ?", (token_id,)).fetchone()
        return None if row is None else Token(*row)

    def all(self) -> list[Token]:
        """Return every token, oldest first."""
        with self._connections.reading() as connection:
            return [Token(*row) for row in connection.execute("SELECT * FROM tokens ORDER BY created_at, id")]

    def remove(self, token_id: str) -> bool:
        """Forget a token; False if there was none."""
        with self._connections.writing() as connection:
            return connection.execute("DELETE FROM tokens WHERE id = ?", (token_id,)).rowcount > 0
