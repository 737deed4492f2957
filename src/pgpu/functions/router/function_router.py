"""The hall of one function: its requests wait here, and go from here to replicas.

Each request belongs to a version, by the shares of the traffic or because its caller says so. While a new version's first
replica starts, the others stand in for it. What no replica has seen is given to another one; what one may have begun is
not, unless the function is idempotent. It refuses to start replicas: it shows what it needs and wakes the controller.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence

from pgpu.functions.ipc.messages import Chunk, Reply
from pgpu.functions.protocols import Refusal
from pgpu.functions.router.control_plane import ReacquireResult
from pgpu.functions.router.gateway_metrics import GatewayMetrics
from pgpu.functions.router.replica_choice import able_replicas, evictable_replica, freest_replica
from pgpu.functions.router.replica_connection import ReplicaConnection
from pgpu.functions.router.routed_request import RoutedRequest
from pgpu.functions.router.router_refusals import (
    GONE,
    LATE_ANSWER,
    LATE_TURN,
    NO_MEMORY,
    STARTING_TIMEOUT,
    WORKER_DIED,
    hopeless_refusal,
    queue_full,
)
from pgpu.functions.router.version_load import VersionLoad
from pgpu.functions.scaling import FunctionView, Phase, TrafficSplit, ValueClock
from pgpu.model import Function, VersionState

_MOST_ATTEMPTS = 3
_OK = 200
_UNSEEN = {429, 503}
"""Statuses with which a front refuses what no worker has seen."""

_BROKEN = Chunk(b"", is_last=True, is_broken=True)
_HOPELESS_FAILURES = 5


class FunctionRouter:
    """One function; on the event loop only."""

    def __init__(self, function: Function, metrics: GatewayMetrics, wake: Callable[[], None]) -> None:
        """Open it.

        Args:
            function: As the server knows it.
            metrics: Counts answers.
            wake: Called where something is to be decided about replicas.
        """
        self._metrics, self._wake = metrics, wake
        self.loads: dict[int, VersionLoad] = {}
        self._split = TrafficSplit({})
        self.links: dict[str, ReplicaConnection] = {}
        self.is_closed = False
        """The function is no more; who was about to call it is told so."""

        self.on_admitted: Callable[[RoutedRequest], None] = lambda _errand: None
        self.on_begun: Callable[[RoutedRequest], None] = lambda _errand: None
        """Told of each errand that is given to a replica, just before."""

        self.on_phase_noted: Callable[[ReplicaConnection], None] = lambda _link: None
        self.on_first_answer: Callable[[ReplicaConnection], None] = lambda _link: None
        self.claim: Callable[[ReplicaConnection], None] = lambda _link: None
        """Has the engine asked for an offered lease."""

        self.adopt(function)

    def adopt(self, function: Function) -> None:
        """Go by what the server knows now; who waits for a version that gets no more traffic waits for another."""
        self.function = function
        percents = {share.version: share.percent for share in function.traffic}
        for version in function.versions:
            if version.number not in self.loads:
                self.loads[version.number] = VersionLoad(version)
            self.loads[version.number].version = version
        if self._split.percents != percents:
            self._split = TrafficSplit(percents)
            for load in self.loads.values():
                self._redirect(load)
        for number in self.loads:
            self.refuse_waiting(number)
        newest = function.traffic[0].version if function.traffic else function.versions[-1].number
        self.declaration = self.loads[newest].declaration

    @property
    def name(self) -> str:
        """The function's."""
        return self.function.name

    @property
    def slots(self) -> int:
        """Calls that all replicas that it may have run at a time."""
        load = self.loads[self.function.traffic[0].version] if self.function.traffic else None
        return 1 if load is None else load.slots * load.declaration.maximum

    def submit(self, errand: RoutedRequest) -> None:
        """Admit a request, or tell its asker why not."""
        load = self.load_of(errand)
        if load is None:
            self._answer(errand, GONE)
            return
        load.note_call(errand.admitted_seconds)
        link = None if load.queue else self._free(load, errand)
        if link is not None:
            self._send(link, errand)
        elif (refused := self._refusal(load)) is not None:
            self._answer(errand, refused)
            return
        else:
            load.queue.append(errand)
            self._wake()
        self.on_admitted(errand)

    def refuse(self, errand: RoutedRequest, refused: Refusal) -> None:
        """Tell an asker why its request is not admitted."""
        self._answer(errand, refused)

    def serves(self, version: int) -> bool:
        """Say whether a version gets traffic, and so may be asked for by number."""
        return version in self._split.percents

    def hopeless(self) -> Refusal | None:
        """Say why no version of it can be served now; None: one can."""
        loads = [self.loads[number] for number in self._split.percents]
        return hopeless_refusal(loads[0]) if loads and all(self._is_hopeless(load) for load in loads) else None

    def abandon(self, errand: RoutedRequest) -> None:
        """Nobody waits for it any more."""
        if errand.asker is not None:
            errand.asker = None
            self._metrics.answered(self.name, 499, time.monotonic() - errand.admitted_seconds)
        self._let_go(errand)

    def expire(self, errand: RoutedRequest) -> None:
        """Answer a request whose deadline has passed."""
        refused = self._late(errand)
        self._let_go(errand)
        self._break_or_answer(errand, refused)

    def errands(self) -> Iterator[RoutedRequest]:
        """Yield every request that is here."""
        for link in self.links.values():
            yield from link.sent.values()
        for load in self.loads.values():
            yield from load.queue

    def add(self, link: ReplicaConnection) -> None:
        """A replica was asked for, or found."""
        self.links[link.job_id] = link

    def remove(self, link: ReplicaConnection) -> None:
        """A replica is no more."""
        if self.links.pop(link.job_id, None) is not None:
            link.close()
            self._cool(link)
            self.on_lost(link, [*link.sent.values()])

    def close(self) -> None:
        """The function is no more: answer everybody."""
        self.is_closed = True
        for load in self.loads.values():
            self._refuse_queue(load, GONE)
        for link in [*self.links.values()]:
            self.remove(link)

    def view(self, clock: ValueClock, *, is_memory_short: bool = False) -> FunctionView:
        """Show what there is to the policy."""
        now = time.monotonic()
        serving = [self.loads[share.version] for share in self.function.traffic]
        return FunctionView(
            now,
            tuple(load.view(now, clock) for load in serving),
            tuple(link.view() for link in self.links.values()),
            is_memory_short=is_memory_short,
            has_fallback=self._has_fallback,
        )

    @property
    def _has_fallback(self) -> bool:
        """Whether a version that gets no traffic has served before."""
        percents = self._split.percents
        return any(load.has_been_ready and load.number not in percents for load in self.loads.values())

    def on_phase(self, link: ReplicaConnection) -> None:
        """A replica becomes hot, or is not any more."""
        load = self.loads[link.version]
        self.on_phase_noted(link)
        if link.phase is Phase.HOT:
            load.note_ready(None if link.has_answered else link.hot_since_seconds - link.asked_seconds)
            load.hot.append(link)
            self.pump()
        else:
            self._cool(link)
            if link.phase is Phase.FAILED and self._is_hopeless(load):
                self._refuse_queue(load, hopeless_refusal(load))
        self._wake()

    def on_reply(self, link: ReplicaConnection, errand: RoutedRequest, reply: Reply, file: int | None) -> None:
        """A replica answers."""
        load = self.loads[link.version]
        if reply.status in _UNSEEN and not reply.started_seconds and self._can_retry(errand):
            _close(file)
            self._requeue(errand)
            return
        if reply.started_seconds:
            load.ahead.learn(reply.exec_seconds)
            if not link.has_answered:
                link.has_answered = True
                self.on_first_answer(link)
        asker = errand.asker
        if reply.is_last:
            errand.asker = None
            errand.forget_body()
            self._metrics.answered(self.name, reply.status, time.monotonic() - errand.admitted_seconds)
        if asker is None:
            _close(file)
        else:
            asker.reply(reply, file)
        if load.queue:
            self.pump()

    def on_streamed(self, errand: RoutedRequest) -> None:
        """A replica has ended a stream."""
        errand.asker = None
        errand.forget_body()
        self._metrics.answered(self.name, _OK, time.monotonic() - errand.admitted_seconds)
        self.pump()

    def on_lost(self, link: ReplicaConnection, errands: Sequence[RoutedRequest]) -> None:
        """A replica has ended: who was with it waits for another where that is harmless."""
        link.sent = {}
        for errand in reversed(errands):
            may_have_begun = not errand.question and not self.loads[link.version].declaration.is_idempotent
            if not may_have_begun and not errand.is_streaming and self._can_retry(errand):
                self._requeue(errand)
            else:
                errand.forget_body()
                self._break_or_answer(errand, WORKER_DIED)
        self._wake()

    def claimed(self, link: ReplicaConnection, claimed: ReacquireResult | None) -> None:
        """The engine has said whether a lease may be used again; None: it does not answer, so nobody else got an offered one."""
        link.is_claiming = False
        if claimed is ReacquireResult.LOST:
            link.become(Phase.DRAINING)
        elif claimed is ReacquireResult.COMING and not link.is_back:
            link.await_slice()
        elif link.is_woken:
            link.rouse(is_sure=claimed is not None)
        else:
            link.offered_value = None
            self.pump()

    def pump(self) -> None:
        """Give what waits to whoever is free."""
        for load in self.loads.values():
            while load.queue and (link := self._free(load, load.queue[0])) is not None:
                self._send(link, load.queue.popleft())

    def refuse_waiting(self, number: int) -> None:
        """No replica of a version can be had: answer who waits for one, unless another attempt may help."""
        load = self.loads[number]
        if self._is_hopeless(load):
            self._refuse_queue(load, hopeless_refusal(load))

    def load_of(self, errand: RoutedRequest) -> VersionLoad | None:
        """Return what is known of the version that serves an errand; None: the function has no traffic, or is no more."""
        if self.is_closed:
            return None
        if not errand.version:
            try:
                errand.version = self._split.next()
            except StopIteration:
                return None
        return self.loads.get(errand.version)

    def _free(self, load: VersionLoad, errand: RoutedRequest) -> ReplicaConnection | None:
        """Choose a replica; where none is free, have one that is on offer claimed."""
        hot = able_replicas(load, self.loads.values(), self._split.percents, is_exact=errand.is_exact)
        best = freest_replica(load, hot)
        if best is None and (offered := evictable_replica(hot)) is not None:
            offered.begin_claim()
            self.claim(offered)
        return best

    def _send(self, link: ReplicaConnection, errand: RoutedRequest) -> None:
        self.on_begun(errand)
        link.send(errand)

    def _refusal(self, load: VersionLoad) -> Refusal | None:
        """Say why one more cannot wait now; None: it can."""
        if self._is_hopeless(load):
            return hopeless_refusal(load)
        replicas = max(1, len(load.hot))
        waiting = len(load.queue) + sum(len(link.sent) for link in load.hot) - replicas * load.slots
        if waiting < load.declaration.queue_limit or (not load.hot and len(load.queue) < load.slots):
            return None
        return queue_full(len(load.queue) * load.ahead.exec_seconds / (replicas * load.slots))

    def _is_hopeless(self, load: VersionLoad) -> bool:
        links = [link for link in self.links.values() if link.version == load.number]
        has_failed = bool(links) and all(link.phase is Phase.FAILED for link in links)
        if load.version.state is VersionState.FAILED:
            return not load.hot
        if not load.has_been_ready and self._has_fallback:
            return False  # it is given up in a moment, and another version serves who waits
        return not load.hot and (has_failed or (not links and load.failures >= _HOPELESS_FAILURES))

    def _late(self, errand: RoutedRequest) -> Refusal:
        if errand.link is not None:
            return LATE_ANSWER
        phases = {link.phase for link in self.links.values() if link.version == errand.version}
        if Phase.HOT in phases:
            return LATE_TURN
        if phases == {Phase.WAITING}:
            return NO_MEMORY
        return STARTING_TIMEOUT

    def _can_retry(self, errand: RoutedRequest) -> bool:
        is_waited_for = errand.asker is not None and time.monotonic() < errand.deadline_seconds
        return is_waited_for and errand.attempts < _MOST_ATTEMPTS

    def _requeue(self, errand: RoutedRequest) -> None:
        errand.link, errand.number = None, 0
        load = self.load_of(errand)
        if load is None:
            self._answer(errand, GONE)
        else:
            load.queue.appendleft(errand)
            self._wake()
            self.pump()

    def _redirect(self, load: VersionLoad) -> None:
        """Let who waits for a version that gets no traffic wait for one that does."""
        if load.number in self._split.percents or not self._split.percents:
            return
        waiting = [errand for errand in load.queue if not errand.is_exact]
        load.queue = type(load.queue)(errand for errand in load.queue if errand.is_exact)
        for errand in waiting:
            errand.version = self._split.next()
            self.loads[errand.version].queue.append(errand)

    def _cool(self, link: ReplicaConnection) -> None:
        load = self.loads.get(link.version)
        if load is not None and link in load.hot:
            load.hot.remove(link)

    def _let_go(self, errand: RoutedRequest) -> None:
        load = self.loads.get(errand.version)
        if errand.link is not None:
            errand.link.cancel(errand)
        elif load is not None and errand in load.queue:
            load.queue.remove(errand)
        errand.forget_body()
        self.pump()

    def _refuse_queue(self, load: VersionLoad, refused: Refusal) -> None:
        while load.queue:
            errand = load.queue.popleft()
            errand.forget_body()
            self._answer(errand, refused)

    def _break_or_answer(self, errand: RoutedRequest, refused: Refusal) -> None:
        if not errand.is_streaming:
            self._answer(errand, refused)
        elif errand.asker is not None:
            asker, errand.asker = errand.asker, None
            asker.chunk(_BROKEN, None)

    def _answer(self, errand: RoutedRequest, refused: Refusal) -> None:
        asker, errand.asker = errand.asker, None
        errand.link = None
        self._metrics.answered(self.name, refused.status, time.monotonic() - errand.admitted_seconds, refused.code)
        errand.forget_body()
        if asker is not None:
            asker.reply(refused.reply(errand.request_id), None)


def _close(file: int | None) -> None:
    if file is not None:
        os.close(file)
