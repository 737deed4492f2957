"""Asynchronous calls in SQLite, each durable before it is acknowledged, and the ids under which they are stored.

One thread writes. The calls that were sent to a replica are lines in a file next to the database, written without a sync: that
file must survive this process, not the machine.
"""

import hashlib
import json
import os
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from pgpu.structs import Struct

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
_EVENT = "application/cloudevents+json"


class AsyncCall(Struct, frozen=True):
    """One call, as it was received."""

    id: str
    function: str
    """The function's identity: see `Function.identity`."""

    caller: str
    """See `GatewayAccess.principal`."""

    digest: str
    """Of the request: a second call with the same id and another digest is an error."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes


class StoredReply(Struct, frozen=True):
    """A call's answer."""

    status: int
    headers: dict[str, str]
    body: bytes


class AsyncCallRecord(Struct, frozen=True):
    """A stored call without its request."""

    function: str
    caller: str
    digest: str
    reply: StoredReply | None
    """None: it has no answer yet."""


class AsyncCallDatabase:
    """The database of one gateway; all methods but `begin` in one thread at a time."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Opened on the event loop's thread, used in the store's: never in both at once. No implicit transactions: see
        # _transaction().
        self._connection = sqlite3.connect(directory / "calls.db", isolation_level=None, check_same_thread=False)
        if self._connection.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
            self._connection.execute("DROP TABLE IF EXISTS calls")  # of a version that did not store callers
        # FULL: a call is acknowledged only after its commit is on disk.
        self._connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;" + _SCHEMA)
        # Counted once and then kept in memory: the limits are checked for each call, and a sum reads the whole table.
        self._held_bytes = self._count_bytes()
        self._begun_path = directory / _BEGUN
        self._begun = os.open(self._begun_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def close(self) -> None:
        self._connection.close()
        os.close(self._begun)

    def held_bytes(self, function: str) -> int:
        return self._held_bytes[function]

    def all_held_bytes(self) -> int:
        return sum([*self._held_bytes.values()])

    def add(self, call: AsyncCall) -> AsyncCallRecord | None:
        """Store a call durably.

        Returns:
            The call that is stored under this id already; None: this one is new.
        """
        with self._transaction():
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
        """Record that a call is sent to a replica now; one write to the page cache, from any thread."""
        # O_APPEND and a single write(): lines of two threads never mix.
        os.write(self._begun, f"{call_id}\n".encode())

    def finish(self, call_id: str, reply: StoredReply) -> None:
        """Store an answer, and drop the request's body."""
        # One transaction: a crash leaves either the request or the answer.
        with self._transaction(), self._recount(call_id):
            self._connection.execute(
                "UPDATE calls SET finished = ?, status = ?, reply_headers = ?, reply = ?, body = x'' WHERE id = ?",
                (time.time(), reply.status, json.dumps(reply.headers), reply.body, call_id),
            )

    def get(self, call_id: str) -> AsyncCallRecord | None:
        row = self._connection.execute(
            "SELECT function, caller, digest, finished, status, reply_headers, reply FROM calls WHERE id = ?",
            (call_id,),
        ).fetchone()
        if row is None:
            return None
        function, caller, digest, finished, status, headers, body = row
        reply = None if finished is None else StoredReply(status, json.loads(headers), body)
        return AsyncCallRecord(function, caller, digest, reply)

    def get_unfinished(self, call_id: str) -> AsyncCall | None:
        """Return a call that has no answer yet, with its request."""
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
        with self._transaction(), self._recount(call_id):
            return self._connection.execute("DELETE FROM calls WHERE id = ?", (call_id,)).rowcount > 0

    def forget_before(self, before_seconds: float) -> None:
        """Delete calls that were answered before a time; seconds since the epoch."""
        with self._transaction():
            self._connection.execute("DELETE FROM calls WHERE finished < ?", (before_seconds,))
        self._held_bytes = self._count_bytes()

    def forget_functions_but(self, functions: Iterable[str]) -> None:
        held = self._connection.execute("SELECT DISTINCT function FROM calls").fetchall()
        for function in {row[0] for row in held} - set(functions):
            self.forget_function(function)

    def forget_function(self, function: str) -> None:
        with self._transaction():
            self._connection.execute("DELETE FROM calls WHERE function = ?", (function,))
        self._held_bytes.pop(function, None)

    def recover(self) -> tuple[list[tuple[str, str]], set[str]]:
        """Return what an earlier gateway left unfinished, and clear the list of calls that it had sent.

        Returns:
            Id and function of each call without an answer, oldest first; and the ids of those that were sent to a replica.
        """
        begun = set(self._begun_path.read_text().splitlines())
        # A crash from here until the refusals are stored makes begun calls look as if they only waited. Accepted: a second crash.
        os.ftruncate(self._begun, 0)
        statement = "SELECT id, function FROM calls WHERE finished IS NULL ORDER BY created"
        return [(row[0], row[1]) for row in self._connection.execute(statement)], begun

    def _count_bytes(self) -> Counter[str]:
        statement = "SELECT function, sum(length(body) + ifnull(length(reply), 0)) FROM calls GROUP BY function"
        return Counter(dict(self._connection.execute(statement).fetchall()))

    @contextmanager
    def _recount(self, call_id: str) -> Iterator[None]:
        """Adjust the bytes of a call's function by what the block changes in that call."""
        function, before = self._size(call_id)
        yield
        self._held_bytes[function] += self._size(call_id)[1] - before

    def _size(self, call_id: str) -> tuple[str, int]:
        statement = "SELECT function, length(body) + ifnull(length(reply), 0) FROM calls WHERE id = ?"
        row = self._connection.execute(statement, (call_id,)).fetchone()
        return ("", 0) if row is None else (row[0], row[1])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # IMMEDIATE takes the write lock now: a read before the first write cannot become outdated.
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:  # KeyboardInterrupt, too: an open transaction would block every other writer.
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


class _Event(msgspec.Struct):
    id: str
    source: str


def new_call_id() -> str:
    """Return a random id, for a call that its caller did not name."""
    return secrets.token_hex(16)


def named_call_id(function: str, caller: str, name: str) -> str:
    """Return the id of a call that its caller named: a digest, so that callers cannot take each other's ids."""
    return _digest("n", function, caller, name)


def event_call_id(function: str, target: str, caller: str, headers: dict[str, str], body: bytes) -> str | None:
    """Return the id of an event's delivery by one caller to one target; None: the request is not an event.

    Source and id together are unique (CloudEvents 1.0, `id`), as far as the caller is trusted. An application may get one event
    at several of its paths, hence the target.
    """
    if headers.get("content-type", "").partition(";")[0].strip().lower() == _EVENT:
        try:
            event = msgspec.json.decode(body, type=_Event)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return _digest("e", function, target, caller, event.source, event.id)
    if "ce-id" in headers and "ce-source" in headers:
        return _digest("e", function, target, caller, headers["ce-source"], headers["ce-id"])
    return None


def request_digest(path: str, query: str, headers: dict[str, str], body: bytes) -> str:
    """Return a digest that differs between two requests."""
    return _digest("r", path, query, headers.get("content-type", ""), hashlib.sha256(body).hexdigest())


def _digest(kind: str, *words: str) -> str:
    # With lengths, so that two lists of parts never give the same text: ("ab", "c") and ("a", "bc").
    joined = "".join(f"{len(word)}:{word}" for word in words)
    return f"{kind}-{hashlib.sha256(joined.encode('utf-8', 'surrogateescape')).hexdigest()[:40]}"
