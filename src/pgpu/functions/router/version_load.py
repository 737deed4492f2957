"""The state of one version in the gateway: its queue and hot replicas, its call rate, the duration of calls and starts."""

import math
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from pgpu.functions.deploy.version_jobs import declaration_of
from pgpu.functions.requests.request_queue import PrefetchWindow
from pgpu.functions.scaling.eviction_value import Frequency, ValueClock, replica_value
from pgpu.functions.scaling.replica_policy import VersionView
from pgpu.model import Version, VersionState

if TYPE_CHECKING:
    from pgpu.functions.router.replica_connection import ReplicaConnection, RoutedRequest

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 30.0
_WEIGHT = 0.3
"""Of the newest cold start in the moving mean."""

_BRIEF_WEIGHT = 0.125
"""Of the newest call in the moving mean."""

_AHEAD_SECONDS = 0.01
"""Work that may be ahead in a replica's queue: some thirty times the cost of one round trip between gateway and replica."""


class VersionLoad:
    """The state of one version; on the event loop only."""

    def __init__(self, version: Version) -> None:
        self.version, self.number = version, version.number
        self.declaration = declaration = declaration_of(version)
        self.slots = declaration.batch.max_size if declaration.batch else declaration.concurrency
        self.target = declaration.target_concurrency or self.slots
        self.prefetch = PrefetchWindow(self.slots, _AHEAD_SECONDS, is_batched=declaration.batch is not None)
        self.queue: deque[RoutedRequest] = deque()
        self.hot: list[ReplicaConnection] = []
        """Replicas that take calls now, also those with an evictable lease."""

        self.pages: dict[str, bytes] = {}
        """The function's own description, JSON by path; empty until a replica has sent it."""

        self.frequency = Frequency()
        self.last_call_seconds: float | None = None
        self.cold_seconds = 1.0
        self.has_been_ready = False
        self.failures = 0
        self.retry_at_seconds = 0.0
        self._brief_part: float | None = None
        self._worth, self._worth_of_call = 0.0, -math.inf

    @property
    def window(self) -> int:
        """Calls that one replica gets at a time, running or not: enough to keep its own queue filled."""
        return min(self.prefetch.window, self.slots + self.declaration.queue_limit)

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

        The first, not the emptiest: so that the last replicas become idle and can be ended. A replica whose calls have run
        long gets none ahead: nothing shows when it will be free.
        """
        best, fewest = None, self.window
        for replica in hot:
            count = len(replica.sent)
            # Its lease may be taken at any moment; see FunctionRouter._free_replica().
            if replica.offered_value is not None:
                continue
            if count < self.slots and not (count and self._is_batched and self.held_calls(replica)):
                return replica
            if count < fewest and not self.is_held(replica):
                best, fewest = replica, count
        return best

    @property
    def _is_batched(self) -> bool:
        return self.declaration.batch is not None

    def held_calls(self, replica: "ReplicaConnection") -> int:
        """Return how many of a replica's calls have run longer than `max_wait`; a batch holds all that the replica can run."""
        latest = time.monotonic() - self.declaration.max_wait_seconds
        held = sum(0.0 < each.begun_seconds <= latest for each in islice(replica.sent.values(), self.slots))
        return self.target if held and self._is_batched else held

    def is_held(self, replica: "ReplicaConnection") -> bool:
        """Whether calls that have run longer than `max_wait` take all of a replica's slots."""
        held = self.held_calls(replica)
        return bool(held) if self._is_batched else held >= self.slots

    def note_call(self, now_seconds: float) -> None:
        self.last_call_seconds = now_seconds
        self.frequency.note(now_seconds)

    def note_duration(self, exec_seconds: float) -> None:
        """Learn from the duration of a call, which runs or has ended."""
        self.prefetch.learn(exec_seconds)
        part = min(1.0, exec_seconds / self.declaration.max_wait_seconds)
        before = part if self._brief_part is None else self._brief_part
        self._brief_part = before + _BRIEF_WEIGHT * (part - before)

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

    def view(self, now_seconds: float, clock: ValueClock) -> VersionView:
        declaration = self.declaration
        if self.last_call_seconds is not None and self.last_call_seconds != self._worth_of_call:
            # The clock's value at the last call; read at the first view after it, since no lease is evictable before.
            self._worth, self._worth_of_call = clock.worth, self.last_call_seconds
        frequency = self.frequency.at(now_seconds)
        return VersionView(
            number=self.number,
            has_been_ready=self.has_been_ready,
            queued=len(self.queue),
            minimum=declaration.min_replicas,
            maximum=declaration.max_replicas,
            target=self.target,
            brief_part=self._brief_part,
            idle_seconds=declaration.scale_to_zero_after_seconds,
            last_call_seconds=self.last_call_seconds,
            startup_timeout_seconds=declaration.startup_timeout_seconds,
            retry_at_seconds=self.retry_at_seconds if self.version.state is VersionState.READY else math.inf,
            failures=self.failures,
            can_park=declaration.gpus <= 1,
            value=replica_value(self._worth, frequency, self.cold_seconds, self.size_bytes),
        )
