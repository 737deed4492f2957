"""The state of one version in the gateway: its queue and hot replicas, its call rate, the duration of calls and starts.

`LoadHistory` writes what was learned (when versions are called, how long calls and starts take) to disk once a minute and at the
end, so a killed gateway loses at most a minute. A file that cannot be read or written costs only what was learned.
"""

import asyncio
import json
import logging
import math
import sqlite3
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pgpu.functions.deploy.version_jobs import declaration_of
from pgpu.functions.requests.request_queue import PrefetchWindow
from pgpu.functions.scaling.call_history import ArrivalHistory, Frequency, ValueClock, replica_value
from pgpu.functions.scaling.replica_policy import VersionView
from pgpu.model import Version, VersionState

if TYPE_CHECKING:
    from pgpu.functions.router.function_router import FunctionRouter
    from pgpu.functions.router.replica_connection import ReplicaConnection, RoutedRequest

_log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 30.0
_WEIGHT = 0.3
"""Of the newest cold start in the moving mean."""

_SAVE_SECONDS = 60.0

_MOST = 10_000
"""Versions; those that were called last are kept."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS learned (
    function TEXT NOT NULL, version INTEGER NOT NULL, called REAL NOT NULL, frequency REAL NOT NULL,
    cold_seconds REAL NOT NULL, exec_seconds REAL NOT NULL, arrivals TEXT NOT NULL, PRIMARY KEY (function, version)
) STRICT
"""


class LearnedLoad(NamedTuple):
    """The part of a version's state that survives a gateway."""

    called_at_seconds: float
    """Of the last call, since the epoch."""

    frequency: float
    """At that time; see `Frequency`."""

    cold_seconds: float
    exec_seconds: float
    arrivals: tuple[int, ...]
    """See `ArrivalHistory.counts`."""


class VersionLoad:
    """The state of one version; on the event loop only."""

    def __init__(self, version: Version) -> None:
        self.version, self.number = version, version.number
        self.declaration = declaration = declaration_of(version)
        self.slots = declaration.batch.max_size if declaration.batch else declaration.concurrency
        self.prefetch = PrefetchWindow(self.slots, is_batched=declaration.batch is not None)
        self.queue: deque[RoutedRequest] = deque()
        self.hot: list[ReplicaConnection] = []
        """Replicas that take calls now, also those with an evictable lease."""

        self.pages: dict[str, bytes] = {}
        """The function's own description, JSON by path; empty until a replica has sent it."""

        self.arrivals, self.frequency = ArrivalHistory(), Frequency()
        self.last_call_seconds: float | None = None
        self.cold_seconds = 1.0
        self.has_been_ready = False
        self.failures = 0
        self.retry_at_seconds = 0.0
        self._worth, self._worth_of_call = 0.0, -math.inf

    @property
    def window(self) -> int:
        """Calls that one replica gets at a time, running or not: enough to keep its own queue filled."""
        return min(2 * self.prefetch.window, self.slots + self.declaration.queue_limit)

    @property
    def size_bytes(self) -> int:
        """GPU memory of one replica, on all its GPUs."""
        return (self.declaration.memory_bytes or 0) * self.declaration.gpus

    def able_replicas(
        self, loads: Collection["VersionLoad"], percents: Mapping[int, int], *, is_exact: bool
    ) -> Sequence["ReplicaConnection"]:
        """Return the hot replicas that may serve this version.

        While the first replica of a new version starts, replicas of other versions serve its calls.

        Args:
            loads: Of all versions.
            percents: Shares of the traffic, by version.
            is_exact: The caller named the version: no other version serves it.
        """
        is_replaced = any(each.hot and each.number not in percents for each in loads if each is not self)
        # A version that was ready before and has no replica now was scaled to zero: its calls wait for its own start.
        if self.hot or is_exact or (self.has_been_ready and not is_replaced):
            return self.hot
        return [replica for each in loads for replica in each.hot]

    def freest_replica(self, hot: Sequence["ReplicaConnection"]) -> "ReplicaConnection | None":
        """Return the first replica with a free slot, else that with the fewest calls; None: all are full.

        The first, not the emptiest: so that the last replicas become idle and can be ended.
        """
        best, fewest = None, self.window
        for replica in hot:
            count = len(replica.sent)
            # Its lease may be taken at any moment; see FunctionRouter._free_replica().
            if replica.offered_value is not None:
                continue
            if count < self.slots:
                return replica
            if count < fewest:
                best, fewest = replica, count
        return best

    def note_call(self, now_seconds: float) -> None:
        if self.last_call_seconds is not None:
            self.arrivals.note(now_seconds - self.last_call_seconds)
        self.last_call_seconds = now_seconds
        self.frequency.note(now_seconds)

    def note_ready(self, cold_seconds: float | None) -> None:
        """Record a replica that became hot so long after its start; None: it was hot before this gateway started."""
        if cold_seconds is not None:
            self.cold_seconds += (_WEIGHT if self.has_been_ready else 1.0) * (cold_seconds - self.cold_seconds)
        # One success ends the backoff.
        self.has_been_ready, self.failures, self.retry_at_seconds = True, 0, 0.0

    def note_failure(self) -> None:
        """Record a replica that ended before it was hot, or could not be started."""
        # Doubled at each failure in a row: a broken version must not occupy a GPU with its starts.
        pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0**self.failures)
        self.failures += 1
        self.retry_at_seconds = time.monotonic() + pause

    def learned_load(self, epoch_seconds: float) -> LearnedLoad | None:
        """Return what the next gateway needs; None for a version without calls.

        Args:
            epoch_seconds: Zero of the monotonic clock, since the epoch.
        """
        last = self.last_call_seconds
        if last is None:
            return None
        counts, exec_seconds = self.arrivals.counts, self.prefetch.exec_seconds
        called_at = round(epoch_seconds + last, 3)
        return LearnedLoad(called_at, self.frequency.at(last), self.cold_seconds, exec_seconds, counts)

    def restore(self, learned: LearnedLoad, epoch_seconds: float) -> None:
        """Continue from an earlier gateway's state."""
        # Stored since the epoch, since the monotonic clock starts at zero at each boot.
        last = learned.called_at_seconds - epoch_seconds
        self.last_call_seconds, self.frequency = last, Frequency(learned.frequency, last)
        self.arrivals, self.cold_seconds = ArrivalHistory(learned.arrivals), learned.cold_seconds
        self.prefetch.exec_seconds = learned.exec_seconds

    def view(self, now_seconds: float, clock: ValueClock) -> VersionView:
        declaration = self.declaration
        learned = self.arrivals if declaration.keep_warm == "auto" else ArrivalHistory()
        if self.last_call_seconds is not None and self.last_call_seconds != self._worth_of_call:
            # The clock's value at the last call; read at the first view after it, since no lease is evictable before.
            self._worth, self._worth_of_call = clock.worth, self.last_call_seconds
        frequency = self.frequency.at(now_seconds)
        return VersionView(
            number=self.number,
            has_been_ready=self.has_been_ready,
            queued=len(self.queue),
            minimum=declaration.minimum,
            maximum=declaration.maximum,
            slots=self.slots,
            exec_seconds=self.prefetch.exec_seconds or None,
            warmth=learned.warmth(declaration.idle_seconds),
            last_call_seconds=self.last_call_seconds,
            startup_timeout_seconds=declaration.startup_timeout_seconds,
            retry_at_seconds=self.retry_at_seconds if self.version.state is VersionState.READY else math.inf,
            failures=self.failures,
            can_park=declaration.gpus <= 1,
            value=replica_value(self._worth, frequency, self.cold_seconds, self.size_bytes),
        )


LearnedLoads = Mapping[tuple[str, int], LearnedLoad]
"""By a function's identity and a version's number."""


class LoadHistory:
    """The database file of learned loads, in the gateway's state directory."""

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
            # Removed, so that the next write makes a new file: a damaged one would fail again at each write.
            self._path.unlink(missing_ok=True)
            return {}

    def write(self, loads: LearnedLoads) -> None:
        """Replace the file's content, unless it is the same."""
        if loads == self._written:
            return
        newest = sorted(loads.items(), key=lambda each: each[1].called_at_seconds, reverse=True)[: self._most]
        rows = [(*key, *learned[:4], json.dumps(learned.arrivals)) for key, learned in newest]
        try:
            # One transaction: a crash leaves the old content or the new one.
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


def restore_loads(routers: Iterable["FunctionRouter"], loads: LearnedLoads) -> None:
    for router in routers:
        for number, load in router.loads.items():
            if (learned := loads.get((router.function.identity, number))) is not None:
                load.restore(learned, _epoch_seconds())


def learned_loads(routers: Iterable["FunctionRouter"]) -> LearnedLoads:
    """Return the learned load of all versions that were ever called."""
    epoch = _epoch_seconds()
    return {
        (router.function.identity, number): learned
        for router in routers
        for number, load in router.loads.items()
        if (learned := load.learned_load(epoch)) is not None
    }


async def save_periodically(routers: Iterable["FunctionRouter"], history: LoadHistory) -> None:
    """Write once a minute until cancelled."""
    while True:
        await asyncio.sleep(_SAVE_SECONDS)
        # In a thread: a slow disk must not block the event loop. The state itself is copied on the loop, before.
        await asyncio.to_thread(history.write, learned_loads(routers))


def _epoch_seconds() -> float:
    """Return the zero of the monotonic clock since the epoch; it differs after each boot."""
    return time.time() - time.monotonic()
