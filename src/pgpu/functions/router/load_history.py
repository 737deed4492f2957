"""What was learnt of functions, over the end of a gateway: when they are called, and what their calls and starts take.

Written now and then and at the end, so a gateway that is killed forgets a minute. It refuses to matter: a file that cannot be
read or written costs what was learnt, and nothing else.
"""

import asyncio
import json
import sqlite3
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

from pgpu.functions.replica.worker_supervisor import log
from pgpu.functions.router.function_router import FunctionRouter
from pgpu.functions.router.version_load import LearnedLoad

_SECONDS = 60.0
_MOST = 10_000
"""Versions; those that were called last."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS learned (
    function TEXT NOT NULL, version INTEGER NOT NULL, called REAL NOT NULL, frequency REAL NOT NULL,
    cold_seconds REAL NOT NULL, exec_seconds REAL NOT NULL, arrivals TEXT NOT NULL, PRIMARY KEY (function, version)
) STRICT
"""

LearnedLoads = Mapping[tuple[str, int], LearnedLoad]
"""By the identity of a function and the number of a version."""


class LoadHistory:
    """One file."""

    def __init__(self, path: Path, most: int = _MOST) -> None:
        self._path, self._most = path, most
        self._written: LearnedLoads = {}

    def read(self) -> LearnedLoads:
        """Return what was written last; nothing of a file that is none."""
        try:
            with closing(self._open()) as connection:
                rows = connection.execute("SELECT * FROM learned").fetchall()
                return {(row[0], row[1]): LearnedLoad._make((*row[2:6], tuple(json.loads(row[6])))) for row in rows}
        except (sqlite3.Error, ValueError, TypeError) as error:
            log(f"what was learnt of functions is forgotten: {error}")
            self._path.unlink(missing_ok=True)
            return {}

    def write(self, lessons: LearnedLoads) -> None:
        """Keep this and nothing else, unless it is what was written last."""
        if lessons == self._written:
            return
        newest = sorted(lessons.items(), key=lambda each: each[1].called_at_seconds, reverse=True)[: self._most]
        rows = [(*key, *learned[:4], json.dumps(learned.arrivals)) for key, learned in newest]
        try:
            with closing(self._open()) as connection, connection:
                connection.execute("DELETE FROM learned")
                connection.executemany("INSERT INTO learned VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            self._written = lessons
        except sqlite3.Error as error:
            log(f"what was learnt of functions is not written: {error}")

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path)
        connection.execute(_SCHEMA)
        return connection


def restore_loads(halls: Iterable[FunctionRouter], lessons: LearnedLoads) -> None:
    """Let functions go on from what was learnt of them."""
    for hall in halls:
        for number, load in hall.loads.items():
            if (learned := lessons.get((hall.function.identity, number))) is not None:
                load.recall(learned, _epoch_seconds())


def learned_loads(halls: Iterable[FunctionRouter]) -> LearnedLoads:
    """Return what there is to remember: of versions that were ever called."""
    epoch = _epoch_seconds()
    return {
        (hall.function.identity, number): learned
        for hall in halls
        for number, load in hall.loads.items()
        if (learned := load.learned(epoch)) is not None
    }


async def save_periodically(halls: Iterable[FunctionRouter], memory: LoadHistory) -> None:
    """Write now and then, until it is cancelled."""
    while True:
        await asyncio.sleep(_SECONDS)
        await asyncio.to_thread(memory.write, learned_loads(halls))


def _epoch_seconds() -> float:
    """Return when the monotonic clock was 0, which each boot sets anew."""
    return time.time() - time.monotonic()
