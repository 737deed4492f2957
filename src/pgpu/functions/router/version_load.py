"""What is known of one version while the gateway runs: who waits for it, how often it is called, what calls and starts take.

It refuses to act on it.
"""

import math
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from pgpu.functions.deploy.replica_job import declaration_of
from pgpu.functions.requests.prefetch_window import PrefetchWindow
from pgpu.functions.router.routed_request import RoutedRequest
from pgpu.functions.scaling import ArrivalHistory, VersionView
from pgpu.functions.scaling.replica_value import Frequency, ValueClock, replica_value
from pgpu.model import Version, VersionState

if TYPE_CHECKING:
    from pgpu.functions.router.replica_connection import ReplicaConnection

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 30.0
_WEIGHT = 0.3
"""Of the newest cold start in the moving mean."""


class LearnedLoad(NamedTuple):
    """What outlives a gateway."""

    called_at_seconds: float
    """Since the epoch; of the last call."""

    frequency: float
    """At that time; see `Frequency`."""

    cold_seconds: float
    exec_seconds: float
    arrivals: tuple[int, ...]
    """See `ArrivalHistory.counts`."""


class VersionLoad:
    """One version's."""

    def __init__(self, version: Version) -> None:
        self.version, self.number = version, version.number
        self.declaration = declaration = declaration_of(version)
        self.slots = declaration.batch.max_size if declaration.batch else declaration.concurrency
        self.ahead = PrefetchWindow(self.slots, is_batched=declaration.batch is not None)
        self.queue: deque[RoutedRequest] = deque()
        self.hot: list[ReplicaConnection] = []
        """Replicas that take calls now, those on offer too."""

        self.pages: dict[str, bytes] = {}
        """What it says of itself, JSON by path; empty until a replica was asked."""

        self.arrivals, self.frequency = ArrivalHistory(), Frequency()
        self.last_call_seconds: float | None = None
        self.cold_seconds = 1.0
        self.has_been_ready = False
        self.failures = 0
        self.retry_at_seconds = 0.0
        self._worth, self._worth_of_call = 0.0, -math.inf

    @property
    def window(self) -> int:
        """Calls that one replica gets at a time, run or not: as much as keeps its front from waiting for more."""
        return min(2 * self.ahead.window, self.slots + self.declaration.queue_limit)

    def note_call(self, now_seconds: float) -> None:
        """Somebody calls."""
        if self.last_call_seconds is not None:
            self.arrivals.note(now_seconds - self.last_call_seconds)
        self.last_call_seconds = now_seconds
        self.frequency.note(now_seconds)

    def learned(self, epoch_seconds: float) -> LearnedLoad | None:
        """Return what is worth remembering; None of a version that nobody has called.

        Args:
            epoch_seconds: When the monotonic clock was 0, since the epoch.
        """
        last = self.last_call_seconds
        if last is None:
            return None
        counts = self.arrivals.counts
        return LearnedLoad(
            round(epoch_seconds + last, 3), self.frequency.at(last), self.cold_seconds, self.ahead.exec_seconds, counts
        )

    def recall(self, learned: LearnedLoad, epoch_seconds: float) -> None:
        """Go on from what an earlier gateway learnt."""
        last = learned.called_at_seconds - epoch_seconds
        self.last_call_seconds, self.frequency = last, Frequency(learned.frequency, last)
        self.arrivals, self.cold_seconds = ArrivalHistory(learned.arrivals), learned.cold_seconds
        self.ahead.exec_seconds = learned.exec_seconds

    def note_ready(self, cold_seconds: float | None) -> None:
        """A replica is hot, so long after it was asked for; None: it was hot before this gateway was there."""
        if cold_seconds is not None:
            self.cold_seconds += (_WEIGHT if self.has_been_ready else 1.0) * (cold_seconds - self.cold_seconds)
        self.has_been_ready, self.failures, self.retry_at_seconds = True, 0, 0.0

    def note_failure(self) -> None:
        """A replica ended before it was hot, or could not be had."""
        pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0**self.failures)
        self.failures += 1
        self.retry_at_seconds = time.monotonic() + pause

    def view(self, now_seconds: float, clock: ValueClock) -> VersionView:
        """Show it to the policy."""
        declaration = self.declaration
        learned = self.arrivals if declaration.keep_warm == "auto" else ArrivalHistory()
        return VersionView(
            number=self.number,
            has_been_ready=self.has_been_ready,
            queued=len(self.queue),
            minimum=declaration.minimum,
            maximum=declaration.maximum,
            slots=self.slots,
            exec_seconds=self.ahead.exec_seconds or None,
            warmth=learned.warmth(declaration.idle_seconds),
            last_call_seconds=self.last_call_seconds,
            startup_timeout_seconds=declaration.startup_timeout_seconds,
            retry_at_seconds=self.retry_at_seconds if self.version.state is VersionState.READY else math.inf,
            failures=self.failures,
            can_park=declaration.gpus <= 1,
            value=replica_value(
                self._worth_then(clock), self.frequency.at(now_seconds), self.cold_seconds, self.size_bytes
            ),
        )

    def _worth_then(self, clock: ValueClock) -> float:
        """Return what the clock said at the last call: at the first look after it, since nothing is on offer before."""
        if self.last_call_seconds is not None and self.last_call_seconds != self._worth_of_call:
            self._worth, self._worth_of_call = clock.worth, self.last_call_seconds
        return self._worth

    @property
    def size_bytes(self) -> int:
        """What a replica holds of all its GPUs."""
        return (self.declaration.memory_bytes or 0) * self.declaration.gpus
