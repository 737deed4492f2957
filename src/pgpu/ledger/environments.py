"""The environments of those who asked for jobs, each stored once for the thousand jobs that were asked for with it.

The database itself drops one with the last job that has it and is not final: it may hold secrets. It refuses to read words
into anything: bytes that are no text travel as JSON.
"""

import json
import sqlite3
from collections.abc import Sequence

Environment = Sequence[tuple[str, str]]

_OF_JOB = """
SELECT coalesce(words, environment) AS words FROM jobs LEFT JOIN environments ON environments.id = environment_id
WHERE jobs.id = ?
"""
"""A pgpu of an older version that still runs writes a job's environment beside it."""


class Environments:
    """Writes of one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._last: tuple[Environment, int | None] = ((), None)

    def keep(self, environment: Environment) -> int | None:
        """Store one, unless it is there, and return its number; None for an empty one."""
        if environment is not self._last[0]:
            self._last = (environment, self._kept(environment) if environment else None)
        return self._last[1]

    def _kept(self, environment: Environment) -> int:
        words = json.dumps(list(environment))
        self._connection.execute("INSERT INTO environments (words) VALUES (?) ON CONFLICT DO NOTHING", (words,))
        row = self._connection.execute("SELECT id FROM environments WHERE words = ?", (words,)).fetchone()
        return int(row[0])


def environment_of(connection: sqlite3.Connection, job_id: str) -> tuple[tuple[str, str], ...]:
    """Return what a job was asked for with; empty once it is final."""
    row = connection.execute(_OF_JOB, (job_id,)).fetchone()
    if row is None or row["words"] is None:
        return ()
    return tuple((name, value) for name, value in json.loads(row["words"]))
