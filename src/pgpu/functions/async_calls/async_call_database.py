"""Kept calls in SQLite, each durable before it is acknowledged.

One thread writes. Which calls were given to a replica is a line in a file beside it, written without waiting: it has to
outlive this process, not the machine. It refuses to know what a call means.
"""

import json
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS calls (
    id TEXT PRIMARY KEY, function TEXT NOT NULL, caller TEXT NOT NULL, digest TEXT NOT NULL, created REAL NOT NULL, method TEXT NOT NULL,
    path TEXT NOT NULL, query TEXT NOT NULL, headers TEXT NOT NULL, body BLOB NOT NULL,
    finished REAL, status INTEGER, reply_headers TEXT, reply BLOB
) STRICT;
CREATE INDEX IF NOT EXISTS unfinished ON calls (created) WHERE finished IS NULL;
CREATE INDEX IF NOT EXISTS of_functions ON calls (function);
PRAGMA user_version = 2;
"""
_VERSION = 2
_BEGUN = "begun"


@dataclass(frozen=True, slots=True)
class AsyncCall:
    """One call as it was asked for."""

    id: str
    function: str
    """Its identity: see `Function.identity`."""

    caller: str
    """Who made it: see `GatewayAccess.principal`."""

    digest: str
    """Of what was asked: a second call of the same id that differs is a mistake."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class StoredReply:
    """Its answer."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class AsyncCallRecord:
    """What is known of a call."""

    function: str
    caller: str
    digest: str
    reply: StoredReply | None
    """None: it has no answer yet."""


class AsyncCallDatabase:
    """Of one gateway; all but `begin` in one thread at a time."""

    def __init__(self, directory: Path) -> None:
        """Open it, or make it."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._connection = sqlite3.connect(directory / "calls.db", isolation_level=None, check_same_thread=False)
        if self._connection.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
            self._connection.execute("DROP TABLE IF EXISTS calls")  # of a pgpu that kept them without their callers
        self._connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;" + _SCHEMA)
        self._held_bytes = self._counted()
        self._begun_path = directory / _BEGUN
        self._begun = os.open(self._begun_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def held_bytes(self, function: str) -> int:
        """Return what the kept calls of a function take, with their answers."""
        return self._held_bytes[function]

    def close(self) -> None:
        """Close it."""
        self._connection.close()
        os.close(self._begun)

    def all_held_bytes(self) -> int:
        """Return what all kept calls take."""
        return sum([*self._held_bytes.values()])

    def add(self, call: AsyncCall) -> AsyncCallRecord | None:
        """Keep a call durably.

        Returns:
            What was there under its id already; None: it is new.
        """
        with self._writing():
            known = self.get(call.id)
            if known is None:
                row = (
                    call.id, call.function, call.caller, call.digest, time.time(), call.method, call.path, call.query,
                    json.dumps(call.headers), call.body,
                )  # fmt: skip
                self._connection.execute(
                    "INSERT INTO calls (id, function, caller, digest, created, method, path, query, headers, body)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    row,
                )
        if known is None:
            self._held_bytes[call.function] += len(call.body)
        return known

    def begin(self, call_id: str) -> None:
        """Note that a call is given to a replica now; costs a write to memory."""
        os.write(self._begun, f"{call_id}\n".encode())

    def finish(self, call_id: str, reply: StoredReply) -> None:
        """Keep an answer; what was asked is forgotten."""
        with self._writing(), self._recounting(call_id):
            self._connection.execute(
                "UPDATE calls SET finished = ?, status = ?, reply_headers = ?, reply = ?, body = x'' WHERE id = ?",
                (time.time(), reply.status, json.dumps(reply.headers), reply.body, call_id),
            )

    def get(self, call_id: str) -> AsyncCallRecord | None:
        """Return what is known of a call."""
        row = self._connection.execute(
            "SELECT function, caller, digest, finished, status, reply_headers, reply FROM calls WHERE id = ?",
            (call_id,),
        ).fetchone()
        if row is None:
            return None
        function, caller, digest, finished, status, headers, body = row
        return AsyncCallRecord(
            function, caller, digest, None if finished is None else StoredReply(status, json.loads(headers), body)
        )

    def asked(self, call_id: str) -> AsyncCall | None:
        """Return a call that has no answer yet."""
        row = self._connection.execute(
            "SELECT id, function, caller, digest, method, path, query, headers, body FROM calls"
            " WHERE id = ? AND finished IS NULL",
            (call_id,),
        ).fetchone()
        if row is None:
            return None
        known, function, caller, digest, method, path, query, headers, body = row
        return AsyncCall(known, function, caller, digest, method, path, query, json.loads(headers), body)

    def forget(self, call_id: str) -> bool:
        """Forget a call; False if there was none."""
        with self._writing(), self._recounting(call_id):
            return self._connection.execute("DELETE FROM calls WHERE id = ?", (call_id,)).rowcount > 0

    def forget_before(self, before_seconds: float) -> None:
        """Forget answers that nobody has fetched for long; seconds since the epoch."""
        with self._writing():
            self._connection.execute("DELETE FROM calls WHERE finished < ?", (before_seconds,))
        self._held_bytes = self._counted()

    def forget_functions_but(self, functions: Iterable[str]) -> None:
        """Forget all calls of functions that are no more."""
        held = self._connection.execute("SELECT DISTINCT function FROM calls").fetchall()
        for function in {row[0] for row in held} - set(functions):
            self.forget_function(function)

    def forget_function(self, function: str) -> None:
        """Forget all calls of a function."""
        with self._writing():
            self._connection.execute("DELETE FROM calls WHERE function = ?", (function,))
        self._held_bytes.pop(function, None)

    def left(self) -> tuple[list[tuple[str, str]], set[str]]:
        """Return (id, function) of the calls without an answer, the oldest first, and the ids of those that were begun.

        For a gateway that was started anew; what was begun is forgotten.
        """
        begun = set(self._begun_path.read_text().splitlines())
        os.ftruncate(self._begun, 0)
        statement = "SELECT id, function FROM calls WHERE finished IS NULL ORDER BY created"
        return [(row[0], row[1]) for row in self._connection.execute(statement)], begun

    def _counted(self) -> Counter[str]:
        statement = "SELECT function, sum(length(body) + ifnull(length(reply), 0)) FROM calls GROUP BY function"
        return Counter(dict(self._connection.execute(statement).fetchall()))

    @contextmanager
    def _recounting(self, call_id: str) -> Iterator[None]:
        """Count anew what one call takes."""
        function, before = self._size(call_id)
        yield
        self._held_bytes[function] += self._size(call_id)[1] - before

    def _size(self, call_id: str) -> tuple[str, int]:
        statement = "SELECT function, length(body) + ifnull(length(reply), 0) FROM calls WHERE id = ?"
        row = self._connection.execute(statement, (call_id,)).fetchone()
        return ("", 0) if row is None else (row[0], row[1])

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")
