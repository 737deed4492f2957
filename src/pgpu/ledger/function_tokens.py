"""Who may call which function. Only digests are kept: whoever reads the ledger can show no token.

It refuses to make a token and to judge one: it finds what was put.
"""

import time

from pgpu.errors import RequestError
from pgpu.ledger.connection import Connections
from pgpu.ledger.function_names import check_same
from pgpu.model import FunctionToken
from pgpu.model.function import identity_of
from pgpu.model.text import escape_undecodable

MOST_TOKENS = 1000
"""Of one function."""


class FunctionTokens:
    """Tokens of functions by id, durable; every method may raise `LedgerError`."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def put(self, token_id: str, function: str, digest: str, label: str, identity: str | None = None) -> None:
        """Keep a new token.

        Args:
            token_id: Its public part.
            function: Which it may call.
            digest: Of its secret part.
            label: For its owner.
            identity: Of the function that is meant; None for whichever has the name.

        Raises:
            FunctionNotFoundError: There is no such function any more.
            RequestError: The function has too many.
        """
        with self._connections.writing() as connection:
            check_same(connection, function, identity)
            statement = "SELECT count(*) FROM function_tokens WHERE function = ?"
            if connection.execute(statement, (function,)).fetchone()[0] >= MOST_TOKENS:
                raise RequestError(f"{function} has {MOST_TOKENS} tokens", hint=f"pgpu token {function} revoke ID")
            row = (token_id, function, digest, escape_undecodable(label), time.time())
            connection.execute("INSERT INTO function_tokens VALUES (?, ?, ?, ?, ?)", row)

    def digest(self, token_id: str) -> tuple[str, str] | None:
        """Return the identity of the function that a token calls, and the digest of its secret part; None: there is none."""
        with self._connections.reading() as connection:
            statement = (
                "SELECT name, functions.created_at, digest FROM function_tokens JOIN functions ON name = function"
                " WHERE id = ?"
            )
            row = connection.execute(statement, (token_id,)).fetchone()
        return None if row is None else (identity_of(row["name"], row["created_at"]), row["digest"])

    def of(self, function: str) -> list[FunctionToken]:
        """Return a function's tokens, oldest first."""
        statement = (
            "SELECT id, function, label, created_at FROM function_tokens WHERE function = ? ORDER BY created_at, id"
        )
        with self._connections.reading() as connection:
            return [FunctionToken(*row) for row in connection.execute(statement, (function,))]

    def remove(self, function: str, token_id: str) -> bool:
        """Forget a token of a function; False if there was none. Ids are random: another function's has another one."""
        with self._connections.writing() as connection:
            statement = "DELETE FROM function_tokens WHERE function = ? AND id = ?"
            return connection.execute(statement, (function, token_id)).rowcount > 0
