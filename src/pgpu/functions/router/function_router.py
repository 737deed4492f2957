"""The router of one function: queues its requests by version and sends them to replicas; and the table of all routers.

Each request belongs to a version, by the shares of the traffic or by its caller's choice. While the first replica of a new
version starts, other versions serve its requests. A request that no replica has seen is sent to another one; one that a
replica may have begun is not, unless the function is idempotent.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from pgpu.errors import RequestError
from pgpu.functions.ipc.call_messages import Reply
from pgpu.functions.ipc.memory_files import close_file
from pgpu.functions.protocols import Refusal
from pgpu.functions.requests.prometheus_metrics import GatewayMetrics
from pgpu.functions.requests.request_queue import MOST_ATTEMPTS, RequestQueue, queue_full
from pgpu.functions.router.replica_connection import ReacquireResult, ReplicaConnection, RoutedRequest
from pgpu.functions.router.version_load import VersionLoad
from pgpu.functions.scaling.eviction_value import ValueClock
from pgpu.functions.scaling.replica_policy import FunctionView, Phase
from pgpu.functions.scaling.traffic_split import TrafficSplit, Window, fits_side_by_side, next_window
from pgpu.model import Function, VersionState
from pgpu.model.function import WHOLE_PERCENT
from pgpu.structs import Struct

WORKER_DIED = Refusal(502, "worker_died", "the replica ended while it served this request")
GONE = Refusal(404, "not_found", "the function is not there any more")
LATE_ANSWER = Refusal(504, "deadline", "the answer did not come in time")
LATE_TURN = Refusal(504, "deadline", "its turn did not come in time")
NO_MEMORY = Refusal(503, "no_memory", "no replica has got its memory in time", {"retry-after": "5"})
STARTING_TIMEOUT = Refusal(503, "starting_timeout", "the function did not start in time", {"retry-after": "5"})
_CRASH_LOOP = Refusal(503, "crash_loop", "the function could not be started several times", {"retry-after": "30"})
_VERSION_FAILED = Refusal(503, "version_failed", "this version of the function cannot be served")

_OK = 200
_CLIENT_GONE = 499
_UNSEEN = {429, 503}
"""Statuses with which a replica refuses a call that no worker has seen."""

_MOST_START_FAILURES = 5
"""Failed starts in a row after which requests of a version without replicas are refused at once."""

_ANSWER_GRACE_SECONDS = 1.0
"""A replica checks the deadlines of its own requests and reports the cause: the gateway answers only after this."""

_log = logging.getLogger(__name__)


class RouterEvents(Struct):
    """Events of all routers of a gateway; each receiver sets its callbacks before the first request. On the event loop."""

    wake: "Callable[[FunctionRouter], None]" = lambda _router: None
    """A function needs a decision of the policy about its replicas."""

    reacquire: "Callable[[FunctionRouter, ReplicaConnection], None]" = lambda _router, _replica: None
    """A request needs a replica with an evictable lease: request that lease from the server."""

    on_phase: Callable[[ReplicaConnection], None] = lambda _replica: None
    on_first_answer: "Callable[[FunctionRouter, ReplicaConnection], None]" = lambda _router, _replica: None
    on_send: Callable[[RoutedRequest], None] = lambda _request: None
    """A request is sent to a replica right after this call."""

    on_closed: Callable[[str], None] = lambda _identity: None
    """The function of this identity was removed, and its requests were answered."""


class FunctionRouter(RequestQueue[RoutedRequest]):
    """The requests and replicas of one function; on the event loop only."""

    def __init__(self, function: Function, metrics: GatewayMetrics, events: RouterEvents) -> None:
        """Begin without replicas.

        Args:
            function: In the server's current state.
            metrics: Counts answers.
            events: Receives what happens here.
        """
        super().__init__()
        self._metrics, self._events = metrics, events
        self.loads: dict[int, VersionLoad] = {}
        """By version."""

        self._percents: dict[int, int] = {}
        """Share of the traffic by version."""

        self._split = TrafficSplit({})
        """Of the next requests: the shares, or the version whose time it is."""

        self._window: Window | None = None
        """The turn of one of the versions that do not fit side by side; None: all serve."""

        self.replicas: dict[str, ReplicaConnection] = {}
        """By job."""

        self.is_closed = False
        """The function was removed; late requests are answered 404."""

        self.adopt(function)

    def adopt(self, function: Function) -> None:
        """Apply the server's state of the function; requests of a version without traffic move to another version."""
        self.function = function
        percents = {share.version: share.percent for share in function.traffic}
        for version in function.versions:
            if version.number not in self.loads:
                self.loads[version.number] = VersionLoad(version)
            self.loads[version.number].version = version
        if self._percents != percents:
            self._percents, self._window = percents, None
            self._set_split(percents)
        for number in self.loads:
            self.refuse_waiting(number)
        # Access and the limits of bodies are checked before a version is chosen: the first one with traffic decides.
        newest = function.traffic[0].version if function.traffic else function.versions[-1].number
        self.declaration = self.loads[newest].declaration

    def _set_split(self, percents: Mapping[int, int]) -> None:
        # A new split starts its sequence again; an unchanged one keeps it, so that small shares get their calls.
        if self._split.percents != percents:
            self._split = TrafficSplit(percents)
            for load in self.loads.values():
                self._redirect(load)

    def choose_window(self) -> None:
        """Share the time among versions that do not fit side by side, and the requests among those that do."""
        if len(self._percents) < 2:  # noqa: PLR2004 - one version has all of both
            return
        now = time.monotonic()
        fits = fits_side_by_side([*self._percents], [replica.view() for replica in self.replicas.values()], now)
        if fits:
            self._window = None
            self._set_split(self._percents)
        elif self._window is not None or fits is False:
            if self._window is None:
                _log.info("%s: the versions do not fit side by side: each serves for its share of the time", self.name)
            cold_seconds = max(self.loads[number].cold_seconds for number in self._percents)
            is_kept = self._window is not None and self._is_kept(self._window, now)
            self._window = next_window(self._percents, self._window, now, cold_seconds, is_kept=is_kept)
            self._set_split({self._window.version: WHOLE_PERCENT})
        self.pump()

    def _is_kept(self, window: Window, now_seconds: float) -> bool:
        """Whether a window goes on whatever its time: its version starts, or no call has come, so that the function scales to zero."""
        timeout_seconds = self.loads[window.version].declaration.startup_timeout_seconds
        is_starting = any(
            each.version == window.version
            and each.phase is Phase.STARTING
            and now_seconds - each.since_seconds < timeout_seconds
            for each in self.replicas.values()
        )
        loads = [self.loads[number] for number in self._percents]
        is_called = any(load.queue or (load.last_call_seconds or 0.0) >= window.since_seconds for load in loads)
        return is_starting or not is_called

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def slots(self) -> int:
        """Calls that run at a time with the largest number of replicas."""
        load = self.loads[self.function.traffic[0].version] if self.function.traffic else None
        return 1 if load is None else load.slots * load.declaration.max_replicas

    def pending(self) -> Iterator[RoutedRequest]:
        for replica in self.replicas.values():
            yield from replica.sent.values()
        for load in self.loads.values():
            yield from load.queue

    def count_answer(self, request: RoutedRequest, status: int, code: str = "") -> None:
        self._metrics.count_answer(self.name, status, time.monotonic() - request.admitted_seconds, code)

    def submit(self, request: RoutedRequest) -> None:
        load = self.load_of(request)
        if load is None:
            self.refuse(request, GONE)
            return
        load.note_call(request.admitted_seconds)
        # Behind waiting requests a new one waits as well: first come, first served.
        replica = None if load.queue else self._free_replica(load, request)
        if replica is not None:
            self._send(replica, request)
        elif (refusal := self._refusal(load)) is not None:
            self.refuse(request, refusal)
            return
        else:
            load.queue.append(request)
            self.watch_waits(load.declaration.max_wait_seconds)
            self._events.wake(self)
        self.watch(request)

    def refuse(self, request: RoutedRequest, refusal: Refusal) -> None:
        """Answer a request with a refusal, as from no replica."""
        request.replica = None
        super().refuse(request, refusal)

    def serves(self, version: int) -> bool:
        """Whether a version gets traffic, and may be named by callers."""
        return version in self._percents

    def start_refusal(self) -> Refusal | None:
        """Return the refusal for a function that cannot start; None: at least one version can be served."""
        loads = [self.loads[number] for number in self._split.percents]
        return _start_refusal(loads[0]) if loads and all(self._cannot_start(load) for load in loads) else None

    def abandon(self, request: RoutedRequest) -> None:
        """Cancel a request after its caller has left."""
        if request.sink is not None:
            request.sink = None
            self.count_answer(request, _CLIENT_GONE)
        self._withdraw(request)

    def check_deadline(self, request: RoutedRequest, now_seconds: float) -> float:
        """Answer a request that is late; see `RequestQueue`."""
        due = request.deadline_seconds + (_ANSWER_GRACE_SECONDS if request.replica is not None else 0.0)
        if now_seconds < due:
            return due
        self.expire(request, self._late_refusal(request))
        return math.inf

    def expire(self, request: RoutedRequest, refusal: Refusal) -> None:
        self._withdraw(request)
        self.break_or_refuse(request, refusal)

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a slot, here or in a replica."""
        return sum(
            len(load.queue) + sum(max(0, len(replica.sent) - load.slots) for replica in load.hot)
            for load in self.loads.values()
        )

    def on_waits(self) -> None:
        """Take back what waits behind calls that run long, break off streams that nobody reads, and get replicas for the rest."""
        for load in self.loads.values():
            latest = time.monotonic() - load.declaration.max_wait_seconds
            if load.queue and load.queue[0].admitted_seconds <= latest:
                self._reacquire(load.hot, len(load.queue))
            for replica in load.hot:
                if len(replica.sent) > load.slots and load.is_held(replica):
                    replica.recall()
        if any(load.queue for load in self.loads.values()):
            super().on_waits()
        self.pump()
        self._events.wake(self)

    def add(self, replica: ReplicaConnection) -> None:
        self.replicas[replica.job_id] = replica
        replica.slots = self.loads[replica.version].slots

    def remove(self, replica: ReplicaConnection) -> None:
        """Remove a replica and handle its requests."""
        if self.replicas.pop(replica.job_id, None) is not None:
            # Closed first: no late reply can arrive for a request that goes to another replica below.
            replica.close()
            self._remove_hot(replica)
            self.on_lost(replica, [*replica.sent.values()])

    def close(self) -> None:
        """Refuse all requests: the function was removed."""
        # First: requests of the replicas that are removed below are then refused instead of queued again.
        self.is_closed = True
        for load in self.loads.values():
            self._refuse_queue(load, GONE)
        for replica in [*self.replicas.values()]:
            self.remove(replica)

    def view(self, clock: ValueClock, *, is_memory_short: bool = False) -> FunctionView:
        now = time.monotonic()
        serving = [self.loads[number] for number in self._split.percents]
        return FunctionView(
            now,
            tuple(load.view(now, clock) for load in serving),
            tuple(replica.view(self.loads[replica.version].held_calls(replica)) for replica in self.replicas.values()),
            is_memory_short=is_memory_short,
            has_fallback=self._has_fallback,
        )

    @property
    def _has_fallback(self) -> bool:
        """Whether a version without traffic has served before."""
        percents = self._split.percents
        return any(load.has_been_ready and load.number not in percents for load in self.loads.values())

    def on_phase(self, replica: ReplicaConnection) -> None:
        load = self.loads[replica.version]
        self._events.on_phase(replica)
        if replica.phase is Phase.HOT:
            load.note_ready(None if replica.has_answered else replica.hot_since_seconds - replica.requested_seconds)
            load.hot.append(replica)
            self.pump()
        else:
            self._remove_hot(replica)
            if replica.phase is Phase.FAILED:
                self.refuse_waiting(load.number)
        self._events.wake(self)

    def on_reply(self, replica: ReplicaConnection, request: RoutedRequest, reply: Reply, file: int | None) -> None:
        load = self.loads[replica.version]
        # The replica refused it before a worker saw it: another replica may have a free slot.
        if reply.status in _UNSEEN and not reply.started_seconds and request.is_recalled:
            request.is_recalled, request.attempts = False, request.attempts - 1
        if reply.status in _UNSEEN and not reply.started_seconds and self._can_retry(request):
            close_file(file)
            self._requeue(request)
            return
        # 0: no worker has seen the call, so its duration means nothing.
        if reply.started_seconds:
            load.note_duration(reply.exec_seconds)
            if not replica.has_answered:
                replica.has_answered = True
                self._events.on_first_answer(self, replica)
        sink = request.sink
        if reply.is_last:
            request.sink = None
            request.release_body()
            self.count_answer(request, reply.status)
        if sink is None:
            close_file(file)
        else:
            sink.reply(reply, file)
        if load.queue:
            self.pump()

    def on_stream_end(self, request: RoutedRequest) -> None:
        request.sink = None
        request.release_body()
        self.count_answer(request, _OK)
        self.pump()

    def on_lost(self, replica: ReplicaConnection, requests: Sequence[RoutedRequest]) -> None:
        """Requeue the requests of a lost replica where a second attempt is harmless, and refuse the others."""
        # Emptied first: requests are sent to other replicas at once, and must not count as in flight here.
        replica.sent = {}
        # Reversed, since each one goes to the head of its queue: so they keep their order.
        for request in reversed(requests):
            # A command has no effect outside the replica, so it may run twice.
            may_have_begun = not request.command and not self.loads[replica.version].declaration.is_idempotent
            if not may_have_begun and not request.is_streaming and self._can_retry(request):
                self._requeue(request)
            else:
                request.release_body()
                self.break_or_refuse(request, WORKER_DIED)
        self._events.wake(self)

    def on_reacquired(self, replica: ReplicaConnection, result: ReacquireResult | None) -> None:
        """Handle the server's answer about a lease; None: it did not answer, so no other job got the lease."""
        replica.is_reacquiring = False
        if result is ReacquireResult.LOST:
            replica.become(Phase.DRAINING)
        # The notification that it is hot again comes from the replica and may precede this answer of the server.
        elif result is ReacquireResult.COMING and not replica.is_back:
            replica.await_slice()
        elif replica.is_woken:
            replica.end_wake(is_sure=result is not None)
        else:
            replica.offered_value = None
            self.pump()

    def pump(self) -> None:
        """Send waiting requests to free replicas."""
        for load in self.loads.values():
            while load.queue and (replica := self._free_replica(load, load.queue[0])) is not None:
                self._send(replica, load.queue.popleft())

    def refuse_waiting(self, version: int) -> None:
        """Refuse the waiting requests of a version if no further attempt to start it can help."""
        load = self.loads[version]
        if self._cannot_start(load):
            self._refuse_queue(load, _start_refusal(load))

    def load_of(self, request: RoutedRequest) -> VersionLoad | None:
        """Return the state of a request's version, which is chosen now if its caller named none.

        None: the function has no traffic, or was removed.
        """
        if self.is_closed:
            return None
        if not request.version:
            try:
                request.version = self._split.next()
            except StopIteration:
                return None
        return self.loads.get(request.version)

    def _free_replica(self, load: VersionLoad, request: RoutedRequest) -> ReplicaConnection | None:
        """Choose a replica; where none will be free in a moment, request the lease of an evictable one."""
        hot = load.able_replicas(self.loads.values(), self._split.percents, is_exact=request.is_exact)
        best = load.freest_replica(hot)
        if best is None and all(
            load.is_held(each) if each.offered_value is None else not each.is_reacquiring for each in hot
        ):
            self._reacquire(hot, 1)
        return best

    def _reacquire(self, hot: Iterable[ReplicaConnection], count: int) -> None:
        """Request the leases of so many evictable replicas: they may lose them at any moment, and are used only afterwards."""
        evictable = (each for each in hot if each.offered_value is not None and not each.is_reacquiring)
        for replica in islice(evictable, count):
            replica.begin_reacquire()
            self._events.reacquire(self, replica)

    def _send(self, replica: ReplicaConnection, request: RoutedRequest) -> None:
        # The store records the call before it is sent: after a crash it counts as begun.
        self._events.on_send(request)
        replica.send(request)
        if not request.begun_seconds:
            self.watch_waits(self.loads[replica.version].declaration.max_wait_seconds)

    def _refusal(self, load: VersionLoad) -> Refusal | None:
        """Return the refusal of one more request; None: it may wait."""
        if self._cannot_start(load):
            return _start_refusal(load)
        replicas = max(1, len(load.hot))
        waiting = len(load.queue) + sum(len(replica.sent) for replica in load.hot) - replicas * load.slots
        if waiting < load.declaration.queue_limit or (not load.hot and len(load.queue) < load.slots):
            return None
        # Retry after the time in which all waiting requests are served.
        return queue_full(len(load.queue) * load.prefetch.exec_seconds / (replicas * load.slots))

    def _cannot_start(self, load: VersionLoad) -> bool:
        replicas = [replica for replica in self.replicas.values() if replica.version == load.number]
        has_failed = bool(replicas) and all(replica.phase is Phase.FAILED for replica in replicas)
        if load.version.state is VersionState.FAILED:
            return not load.hot
        if not load.has_been_ready and self._has_fallback:
            return False  # the policy gives the version up in a moment, and another version serves its requests
        return not load.hot and (has_failed or (not replicas and load.failures >= _MOST_START_FAILURES))

    def _late_refusal(self, request: RoutedRequest) -> Refusal:
        if request.replica is not None:
            return LATE_ANSWER
        # What its replicas wait for now is the best known reason.
        phases = {replica.phase for replica in self.replicas.values() if replica.version == request.version}
        if Phase.HOT in phases:
            return LATE_TURN
        return NO_MEMORY if phases == {Phase.WAITING} else STARTING_TIMEOUT

    def _can_retry(self, request: RoutedRequest) -> bool:
        is_awaited = request.sink is not None and time.monotonic() < request.deadline_seconds
        return is_awaited and request.attempts < MOST_ATTEMPTS

    def _requeue(self, request: RoutedRequest) -> None:
        request.replica, request.number = None, 0
        if not request.is_exact and request.version not in self._split.percents:
            request.version = 0  # no replica of it is started now
        load = self.load_of(request)
        if load is None:
            self.refuse(request, GONE)
        else:
            # At the head: the request has waited longest.
            load.queue.appendleft(request)
            self._events.wake(self)
            self.pump()

    def _redirect(self, load: VersionLoad) -> None:
        """Move the requests of a version without traffic to versions with traffic."""
        if load.number in self._split.percents or not self._split.percents:
            return
        waiting = [request for request in load.queue if not request.is_exact]
        load.queue = deque(request for request in load.queue if request.is_exact)
        for request in waiting:
            request.version = self._split.next()
            self.loads[request.version].queue.append(request)

    def _remove_hot(self, replica: ReplicaConnection) -> None:
        load = self.loads.get(replica.version)
        if load is not None and replica in load.hot:
            load.hot.remove(replica)

    def _withdraw(self, request: RoutedRequest) -> None:
        """Take a request from its queue or replica."""
        load = self.loads.get(request.version)
        if request.replica is not None:
            request.replica.cancel(request)
        elif load is not None and request in load.queue:
            load.queue.remove(request)
        request.release_body()
        self.pump()

    def _refuse_queue(self, load: VersionLoad, refusal: Refusal) -> None:
        while load.queue:
            self.refuse(load.queue.popleft(), refusal)


def _start_refusal(load: VersionLoad) -> Refusal:
    return _VERSION_FAILED if load.version.state is VersionState.FAILED else _CRASH_LOOP


class RouterTable:
    """Functions that can be called; on the event loop only."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self.metrics = metrics
        self.events = RouterEvents()
        self._routers: dict[str, FunctionRouter] = {}
        metrics.gauges = self._gauges

    def get(self, name: str) -> FunctionRouter | None:
        return self._routers.get(name)

    def of(self, identity: str) -> FunctionRouter | None:
        """Return the router of exactly this function, not of a later one of the same name; see `Function.identity`."""
        router = self._routers.get(identity.partition("@")[0])
        return router if router is not None and router.function.identity == identity else None

    def __iter__(self) -> Iterator[FunctionRouter]:
        # A copy: functions may be added and removed while a task iterates and awaits.
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
                self.events.on_closed(gone.function.identity)
        for name, function in known.items():
            try:
                router = self._routers.get(name)
                if router is None:
                    router = self._routers[name] = FunctionRouter(function, self.metrics, self.events)
                    router.watch_deadlines(router.check_deadline)
                elif router.function != function:
                    router.adopt(function)
                else:
                    continue
                self.events.wake(router)
            except RequestError as error:
                _log.info("%s cannot be served: %s", name, error)

    def _gauges(self) -> Iterator[tuple[str, str, int]]:
        for router in self:
            yield router.name, "queued", sum(len(load.queue) for load in router.loads.values())
            yield router.name, "in_flight", sum(replica.in_flight for replica in router.replicas.values())
            phases = [replica.phase for replica in router.replicas.values()]
            for phase in sorted(set(phases)):
                yield router.name, f"replicas_{phase}", phases.count(phase)
