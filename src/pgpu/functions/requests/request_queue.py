"""Pending requests with their answers, deadlines and metrics: the base of a replica's worker queue and of a function's router.

Counting costs one dictionary entry per request. The counters of Prometheus's library, with their locks, would cost ten times
as much; the library only writes the text (`prometheus_metrics`). Labels are bounded: never a value that a caller chooses.
"""

import asyncio
import math
import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from pgpu.functions.ipc.call_messages import STREAM_WINDOW, Body, Chunk, Reply
from pgpu.functions.ipc.memory_files import close_file
from pgpu.functions.protocols.call_refusal import Refusal
from pgpu.structs import Struct

_BOUNDS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class DurationHistogram:
    """A histogram of durations in seconds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS_SECONDS) + 1)
        self.sum_seconds = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(_BOUNDS_SECONDS, seconds)] += 1
        self.sum_seconds += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative count of each bound."""
        total, buckets = 0, []
        for bound, count in zip([*map(str, _BOUNDS_SECONDS), "+Inf"], self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets


class ReplicaMetrics:
    """Counts of one replica."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[int, str]] = Counter()
        """By status and code."""

        self.total, self.exec = DurationHistogram(), DurationHistogram()
        self.starts = 0
        self.restarts = 0
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        """Description and current value, by name."""

    def count_answer(self, status: int, total_seconds: float, exec_seconds: float, code: str = "") -> None:
        """Count an answer; a request that its caller abandoned counts as 499."""
        self.answers[status, code] += 1
        self.total.add(total_seconds)
        if exec_seconds:
            self.exec.add(exec_seconds)


MOST_ATTEMPTS = 3
"""A request that was with this many workers that died is suspected of killing them, and is not given to another."""

BROKEN = Chunk(b"", is_last=True, is_broken=True)
"""Ends a stream that has no proper end."""

_LEAST_RETRY_SECONDS, _MOST_RETRY_SECONDS = 1, 60

_STALLED_SECONDS = 5.0
"""A stream whose caller took nothing for this time is broken off while other calls wait for its place."""

STALLED = Refusal(408, "stalled", "the caller took nothing of the stream while other calls waited")

_MOST_AHEAD = 128
_WEIGHT = 0.125
"""Of the newest call in the moving mean."""


class ResponseSink(Protocol):
    """Receives a request's answer: an HTTP connection, a gateway's connection, or a stored call.

    Called on the event loop; never raises, never blocks.
    """

    def reply(self, reply: Reply, file: int | None) -> None:
        """Take the answer, or its head where chunks follow. The sink closes `file`, the descriptor of a large body."""

    def chunk(self, chunk: Chunk, file: int | None) -> None:
        """Take a piece of a stream. After its delivery the sink calls `ReplicaInfo.credit()`, which allows one more piece."""


class PendingRequest(Struct, eq=False):
    """A request from the end of its head to its answer."""

    request_id: str
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: Body
    file: int | None
    """Descriptor of a sealed memory file with a large body; open until the request is answered."""

    admitted_seconds: float
    """On the monotonic clock, as all times here."""

    deadline_seconds: float
    timeout_seconds: float
    sink: ResponseSink | None
    """None once the request was answered or its caller has left."""

    number: int = 0
    """Of the call in the worker or replica that has it; 0 in the queue. Numbers grow in the order in which calls are sent."""

    attempts: int = 0
    """Workers or replicas that the request was sent to."""

    is_streaming: bool = False
    """The head of the answer was sent to the sink."""

    undelivered: int = 0
    """Pieces of its stream that arrived and that its caller has not taken."""

    stalled_seconds: float = math.inf
    """Since when its handler waits for its caller to take a piece of the stream."""

    def note_chunk(self) -> None:
        """Record a piece of the stream that is passed on to the caller."""
        self.undelivered += 1
        if self.undelivered == STREAM_WINDOW:
            self.stalled_seconds = time.monotonic()

    def note_credit(self) -> None:
        """Record that the caller took a piece."""
        self.undelivered -= 1
        self.stalled_seconds = math.inf

    def release_body(self) -> None:
        """Free the body: the request is not sent again."""
        close_file(self.file)
        self.file = None
        self.body = b""


R = TypeVar("R", bound=PendingRequest)
Check = Callable[[R, float], float]
"""Handles a request after its deadline may have passed; returns when to check it again, infinite for never."""


class RequestQueue(ABC, Generic[R]):
    """Pending requests of one function; on the event loop only.

    One timer serves all deadlines. It goes off at the earliest known deadline, usually after that request was answered: a
    timer per request would cost every request what only late ones need.
    """

    def __init__(self) -> None:
        self._check: Check[R] | None = None
        self._next_seconds = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._wait_timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def pending(self) -> Iterable[R]:
        """Return every pending request, oldest first."""

    @abstractmethod
    def count_answer(self, request: R, status: int, code: str = "") -> None:
        """Count one answer in the metrics."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Number of requests that wait for a place to run."""

    @abstractmethod
    def expire(self, request: R, refusal: Refusal) -> None:
        """End a request whose call may run."""

    def watch_waits(self, max_wait_seconds: float) -> None:
        """Call `on_waits()` at this interval while requests wait, once deadlines are watched."""
        if self._wait_timer is None and self._check is not None:
            loop = asyncio.get_running_loop()
            self._wait_timer = loop.call_later(max_wait_seconds, self._on_wait_timer, max_wait_seconds)

    def _on_wait_timer(self, max_wait_seconds: float) -> None:
        self._wait_timer = None
        if self.waiting:
            self.on_waits()
            self.watch_waits(max_wait_seconds)

    def on_waits(self) -> None:
        """Make room for requests that wait: break off streams whose callers take nothing."""
        latest = time.monotonic() - _STALLED_SECONDS
        for request in [*self.pending()]:
            if request.stalled_seconds <= latest and request.sink is not None:
                self.expire(request, STALLED)

    def watch_deadlines(self, check: Check[R]) -> None:
        """Start to check deadlines, on the running event loop."""
        self._check = check

    def watch(self, request: R) -> None:
        """Ensure that the timer goes off at this request's deadline; called for each admitted request."""
        # Usually false: requests arrive in the order of their deadlines, so one comparison is the whole cost.
        if self._check is not None and request.deadline_seconds < self._next_seconds:
            self._schedule(request.deadline_seconds)

    def _schedule(self, at_seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_seconds = at_seconds
        delay = max(0.0, at_seconds - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, self._check_all)

    def _check_all(self) -> None:
        assert self._check is not None  # noqa: S101 - the timer is only set with a check
        now, self._timer, self._next_seconds = time.monotonic(), None, math.inf
        # A copy: a check may answer requests, and so change the queue.
        dues = [self._check(request, now) for request in [*self.pending()]]
        if dues and (first := min(dues)) < math.inf:
            self._schedule(first)

    def refuse(self, request: R, refusal: Refusal) -> None:
        """Answer a request that has no answer yet with a refusal; nothing is sent if its caller has left."""
        # Cleared first: the sink may call back into the queue, where the request must count as answered.
        sink, request.sink = request.sink, None
        self.count_answer(request, refusal.status, refusal.code)
        request.release_body()
        if sink is not None:
            sink.reply(refusal.reply(request.request_id), None)

    def break_or_refuse(self, request: R, refusal: Refusal) -> None:
        """Answer a request with a refusal; where a stream has begun, break it off instead."""
        if not request.is_streaming:
            self.refuse(request, refusal)
        elif request.sink is not None:
            # The status was sent with the first piece: an incomplete body is the only way left to report the failure.
            sink, request.sink = request.sink, None
            self.count_answer(request, refusal.status, refusal.code)
            request.release_body()
            sink.chunk(BROKEN, None)


def queue_full(seconds: float) -> Refusal:
    """Return the refusal of a full queue that will be empty after so many seconds."""
    after = min(_MOST_RETRY_SECONDS, max(_LEAST_RETRY_SECONDS, math.ceil(seconds)))
    return Refusal(429, "queue_full", "too many requests wait already", {"retry-after": str(after)})


class PrefetchWindow:
    """How many calls a worker may have, running or not; learned from the calls' duration.

    Short calls are sent ahead, so that the worker finds the next one in its socket. Of long calls none is: another worker may be
    free first.
    """

    def __init__(self, slots: int, ahead_seconds: float, *, is_batched: bool) -> None:
        """Begin with the smallest window.

        Args:
            slots: Calls that the worker runs at a time.
            ahead_seconds: Work that may be ahead.
            is_batched: They run as one batch; the next batch must be there when this one ends.
        """
        self._slots, self._ahead_seconds, self._is_batched = slots, ahead_seconds, is_batched
        self.exec_seconds = 0.0
        """Moving mean of a call's duration; 0: not known yet."""

        self.window = 2 * slots if is_batched else slots + 1
        """Calls that the worker may have, running or not."""

    def learn(self, exec_seconds: float) -> None:
        self.exec_seconds += _WEIGHT * (exec_seconds - self.exec_seconds)
        if not self._is_batched:
            self.window = self._slots + min(_MOST_AHEAD, int(self._ahead_seconds / (self.exec_seconds + 1e-9)))
