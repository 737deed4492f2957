"""Replicas of functions and their cold starts, written by the gateway, which finds its replicas here after a restart.

Whether a replica is running is recorded in the entry of its job.
"""

import json
import sqlite3

from pgpu.errors import FunctionNotFoundError
from pgpu.ledger.sqlite_connections import Connections
from pgpu.model import ColdStart, Replica, ReplicaState


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
    statement = "SELECT created_at FROM function_versions WHERE function = ? AND number = ?"
    row = connection.execute(statement, (function, version)).fetchone()
    if row is None or created_at_seconds not in {None, row["created_at"]}:
        raise FunctionNotFoundError(f"there is no {function}@{version} any more")
