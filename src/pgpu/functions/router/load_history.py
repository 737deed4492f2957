"""Learned load in a SQLite file, across the end of a gateway: when functions are called, and how long calls and starts take.

Written once a minute and at the end, so a killed gateway loses at most a minute. A file that cannot be read or written costs only
what was learned.
"""

import asyncio
import json
import logging
import sqlite3
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

from pgpu.functions.router.function_router import FunctionRouter
from pgpu.functions.router.version_load import LearnedLoad

_SAVE_SECONDS = 60.0
_MOST = 10_000
"""Versions; those that were called last are kept."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS learned (
    function TEXT NOT NULL, version INTEGER NOT NULL, called REAL NOT NULL, frequency REAL NOT NULL,
    cold_seconds REAL NOT NULL, exec_seconds REAL NOT NULL, arrivals TEXT NOT NULL, PRIMARY KEY (function, version)
) STRICT
"""
_log = logging.getLogger(__name__)

LearnedLoads = Mapping[tuple[str, int], LearnedLoad]
"""By a function's identity and a version's number."""


class LoadHistory:
    """The file."""

    def __init__(self, path: Path, most: int = _MOST) -> None:
        self._path, self._most = path, most
        self._written: LearnedLoads = {}

    def read(self) -> LearnedLoads:
        """Return the last written state; empty if the file cannot be read, which is then removed."""
        try:
            with closing(self._open()) as connection:
                rows = connection.execute("SELECT * FROM learned").fetchall()
                return {(row[0], row[1]): LearnedLoad._make((*row[2:6], tuple(json.loads(row[6])))) for row in rows}
        except (sqlite3.Error, ValueError, TypeError) as error:
            _log.info("the learned load of functions is dropped: %s", error)
            self._path.unlink(missing_ok=True)
            return {}

    def write(self, loads: LearnedLoads) -> None:
        """Replace the file's content, unless it is the same."""
        if loads == self._written:
            return
        newest = sorted(loads.items(), key=lambda each: each[1].called_at_seconds, reverse=True)[: self._most]
        rows = [(*key, *learned[:4], json.dumps(learned.arrivals)) for key, learned in newest]
        try:
            with closing(self._open()) as connection, connection:
                connection.execute("DELETE FROM learned")
                connection.executemany("INSERT INTO learned VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            self._written = loads
        except sqlite3.Error as error:
            _log.info("the learned load of functions is not written: %s", error)

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path)
        connection.execute(_SCHEMA)
        return connection


def restore_loads(routers: Iterable[FunctionRouter], loads: LearnedLoads) -> None:
    """Restore the learned load of functions."""
    for router in routers:
        for number, load in router.loads.items():
            if (learned := loads.get((router.function.identity, number))) is not None:
                load.restore(learned, _epoch_seconds())


def learned_loads(routers: Iterable[FunctionRouter]) -> LearnedLoads:
    """Return the learned load of all versions that were ever called."""
    epoch = _epoch_seconds()
    return {
        (router.function.identity, number): learned
        for router in routers
        for number, load in router.loads.items()
        if (learned := load.learned(epoch)) is not None
    }


async def save_periodically(routers: Iterable[FunctionRouter], history: LoadHistory) -> None:
    """Write once a minute until cancelled."""
    while True:
        await asyncio.sleep(_SAVE_SECONDS)
        await asyncio.to_thread(history.write, learned_loads(routers))


def _epoch_seconds() -> float:
    """Return the zero of the monotonic clock since the epoch; it differs after each boot."""
    return time.time() - time.monotonic()
