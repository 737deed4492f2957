"""The routers of all functions of a gateway, by name, kept in step with the server's functions; and their learned load on disk.

The learned load (when functions are called, how long calls and starts take) is written once a minute and at the end, so a killed
gateway loses at most a minute. A file that cannot be read or written costs only what was learned.
"""

import asyncio
import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

from pgpu.errors import RequestError
from pgpu.functions.requests.prometheus_metrics import GatewayMetrics
from pgpu.functions.router.function_router import FunctionRouter
from pgpu.functions.router.replica_connection import ReplicaConnection, RoutedRequest
from pgpu.functions.router.version_load import LearnedLoad
from pgpu.model import Function

_log = logging.getLogger(__name__)


class RouterTable:
    """Functions that can be called; on the event loop only."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self.metrics = metrics
        self._routers: dict[str, FunctionRouter] = {}
        self.wake: Callable[[FunctionRouter], None] = lambda _router: None
        """Called with each function that needs a decision of the policy about its replicas."""

        self.on_send: Callable[[RoutedRequest], None] = lambda _request: None
        self.on_closed: Callable[[str], None] = lambda _identity: None
        """Called with the identity of each removed function, after its requests were answered."""

        self.on_phase: Callable[[ReplicaConnection], None] = lambda _replica: None
        self.on_first_answer: Callable[[FunctionRouter, ReplicaConnection], None] = lambda _router, _replica: None
        self.reacquire: Callable[[FunctionRouter, ReplicaConnection], None] = lambda _router, _replica: None
        metrics.gauges = self._gauges

    def get(self, name: str) -> FunctionRouter | None:
        return self._routers.get(name)

    def of(self, identity: str) -> FunctionRouter | None:
        """Return the router of exactly this function, not of a later one of the same name; see `Function.identity`."""
        router = self._routers.get(identity.partition("@")[0])
        return router if router is not None and router.function.identity == identity else None

    def __iter__(self) -> Iterator[FunctionRouter]:
        return iter([*self._routers.values()])

    def adopt(self, functions: Iterable[Function]) -> None:
        """Create, update and close routers to match these functions."""
        known = {function.name: function for function in functions}
        for name in [*self._routers]:
            function = known.get(name)
            if function is None or function.created_at_seconds != self._routers[name].function.created_at_seconds:
                # Same name, other creation time: the function was removed and deployed anew; its calls belong to the old one.
                gone = self._routers.pop(name)
                gone.close()
                self.metrics.forget(name)
                self.on_closed(gone.function.identity)
        for name, function in known.items():
            try:
                router = self._routers.get(name)
                if router is None:
                    self._routers[name] = self._create(function)
                elif router.function != function:
                    router.adopt(function)
                    self.wake(router)
            except RequestError as error:
                _log.info("%s cannot be served: %s", name, error)

    def _create(self, function: Function) -> FunctionRouter:
        router = FunctionRouter(function, self.metrics, lambda: self.wake(router))
        router.watch_deadlines(router.check_deadline)
        router.on_send = self.on_send
        router.on_replica_phase = self.on_phase
        router.on_first_answer = lambda replica: self.on_first_answer(router, replica)
        router.reacquire = lambda replica: self.reacquire(router, replica)
        self.wake(router)
        return router

    def _gauges(self) -> Iterator[tuple[str, str, int]]:
        for router in self:
            yield router.name, "queued", sum(len(load.queue) for load in router.loads.values())
            yield router.name, "in_flight", sum(replica.in_flight for replica in router.replicas.values())
            phases = [replica.phase for replica in router.replicas.values()]
            for phase in sorted(set(phases)):
                yield router.name, f"replicas_{phase}", phases.count(phase)


_SAVE_SECONDS = 60.0
_MOST = 10_000
"""Versions; those that were called last are kept."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS learned (
    function TEXT NOT NULL, version INTEGER NOT NULL, called REAL NOT NULL, frequency REAL NOT NULL,
    cold_seconds REAL NOT NULL, exec_seconds REAL NOT NULL, arrivals TEXT NOT NULL, PRIMARY KEY (function, version)
) STRICT
"""

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
