"""The supervision of a replica's worker: starts, restarts, health probes, hard deadlines, and the replica's serving state.

Requests belong to the `WorkerQueue`; the supervisor only gives it a worker, or the reason why there is none.
"""

import asyncio
import logging
import math
import socket
import time
from collections.abc import Callable, Sequence
from enum import StrEnum

from pgpu.functions.api import parse_declaration
from pgpu.functions.ipc.call_messages import CallFrame, Command, FrameKind, Notification, encode_frame
from pgpu.functions.ipc.memory_files import StartedMark
from pgpu.functions.protocols.call_refusal import Refusal
from pgpu.functions.replica.startup import ServedFunction, ZygoteProcess, spawn_zygote
from pgpu.functions.replica.worker_process import (
    HANGING_GRACE_SECONDS,
    LEAVING_GRACE_SECONDS,
    OomKillCounter,
    WorkerProcess,
    ZygoteConnection,
    end_process,
)
from pgpu.functions.replica.worker_queue import WORKER_DIED, WorkerQueue, WorkerSlot
from pgpu.functions.requests.request_queue import PendingRequest, ReplicaMetrics

NO_HOST_MEMORY = "it needed more host memory than its container has"
OUT_OF_MEMORY = Refusal(502, "worker_died", "the worker ran out of host memory while it served this request")
STARTING_TIMEOUT = Refusal(503, "starting_timeout", "the function did not start in time", {"retry-after": "5"})
_LATE = Refusal(504, "deadline", "the answer did not come in time")

LONGEST_GRACE_SECONDS = 10.0
"""After the function's own timeout a call may run for as long again, but not longer than this."""

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 30.0
_MOST_FAILURES = 5
_SHORTEST_LIFE_SECONDS = 0.1
"""A worker that was ready is replaced at once, but not more often than this."""

_HEALTH = encode_frame(FrameKind.COMMAND, 0, Command("health"))
_log = logging.getLogger(__name__)


class ServingState(StrEnum):
    """What a replica does, as health pages, metrics and errors name it."""

    COLD = "cold"
    """There is no worker and none is being started."""

    STARTING = "starting"
    """A worker is imported or constructed, or the next attempt is due; requests wait."""

    HOT = "hot"
    """The worker takes calls."""

    PARKED = "parked"
    """The slice was taken, and the worker is frozen or gone; requests wait for a slice."""

    FAILED = "failed"
    """Several starts in a row failed; requests are refused, and starts are tried at long intervals."""

    DRAINING = "draining"
    """Pending requests are served, new ones refused."""


class WorkerSupervisor:
    """Keeps one worker running; on the event loop only."""

    def __init__(self, function: ServedFunction, worker_queue: WorkerQueue, metrics: ReplicaMetrics) -> None:
        """Begin without a worker; `start()` starts one.

        Raises:
            RequestError: The declaration is invalid.
        """
        self._function, self._queue, self._metrics = function, worker_queue, metrics
        self.declaration = parse_declaration(function.declaration)
        self._state = ServingState.COLD
        self.on_state: Callable[[], None] = lambda: None
        """Called on each change of the state, before the other attributes have changed."""

        self.reason: str | None = None
        """Why the replica is not hot, in a few words; of an exception only its type."""

        self.import_seconds = 0.0
        """Duration of the import of the function's module; 0 before it."""

        self.pages: dict[str, bytes] = {}
        """The function's own description, JSON by path; empty until its module was imported."""

        self._probed_seconds: float | None = None
        """When the health probe was sent that has no answer yet; None: there is none."""

        self._oom_kills = OomKillCounter()
        self._failures = 0
        self._spawned = 0
        """Number of the last worker."""

        self._zygote: ZygoteConnection | None = None
        self.first: ZygoteProcess | None = None
        """A zygote that was started before; None: one is spawned when it is needed."""

        self._is_imported = False
        self._worker: WorkerProcess | None = None
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._start_timeout: asyncio.TimerHandle | None = None
        self._is_leaving = False
        self._is_parked = False
        """No worker is started and none gets calls: there is no slice, or no calls are expected."""

        self._has_slice = True
        self._worker_ended = asyncio.Event()

    @property
    def state(self) -> ServingState:
        """The replica's state; draining is final."""
        return self._state

    @state.setter
    def state(self, state: ServingState) -> None:
        if self._state is not ServingState.DRAINING:
            self._state = state
            self.on_state()

    @property
    def restarts(self) -> int:
        """Workers that ended on their own since the replica started."""
        return self._metrics.restarts

    def start(self) -> None:
        """Start a worker, from the zygote if it is there."""
        self._pause = None
        if self.state is not ServingState.FAILED:
            self.state = ServingState.STARTING
        self._limit_start()
        if self._zygote is None:
            self._is_imported = False
            # Only the first start uses the forked zygote; it is dead at any later start without a zygote.
            first, self.first = self.first, None
            process = first or spawn_zygote(self._function)
            self._zygote = ZygoteConnection(process, self._on_zygote_notification, self._on_zygote_end)
        elif self._is_imported:
            self._spawn_worker(self._zygote)

    def on_slice_taken(self) -> None:
        """Stop sending calls to the worker; if it dies, none is started before `on_slice_given()`."""
        self._has_slice = False
        self._rest()

    def on_slice_given(self) -> None:
        """Resume the worker, or start another one."""
        self._has_slice = True
        self._resume()

    def park(self) -> None:
        """End the worker and free what it holds, since no calls are expected; the zygote stays. Ignored while requests are pending."""
        # A request may have arrived since the gateway decided to park.
        if self._queue.size:
            return
        self._rest()
        if self._is_parked and self._worker is not None:
            self._worker.end(LEAVING_GRACE_SECONDS)

    def wake(self) -> None:
        """Undo `park()`; without a slice only `on_slice_given()` does."""
        if self._has_slice:
            self._resume()

    def _rest(self) -> None:
        if not self._is_parked and not self._is_leaving:
            self._is_parked = True
            self._cancel_timers()
            self._queue.pause()
            self.state = ServingState.PARKED

    def _resume(self) -> None:
        if not self._is_parked:
            # The slice was taken and given back before the first signal was processed: listeners wait for a status change.
            self.on_state()
            return
        self._is_parked, self._probed_seconds = False, None
        worker = self._worker
        if worker is None:
            self.start()
        elif worker.is_ready and not worker.is_ending:
            self._queue.resume()
            self.state = ServingState.HOT
        else:
            self.state = ServingState.STARTING
            self._limit_start()

    def end_worker(self, reason: str) -> None:
        """End a worker that hangs or is unhealthy; another one follows."""
        if self._worker is not None:
            self.reason = reason
            _log.info("the worker is ended: %s", reason)
            self._worker.end(HANGING_GRACE_SECONDS)

    async def leave(self) -> None:
        """End the worker after its handler's `close()`, and start no other; pending requests were served before."""
        self._is_leaving = True
        self._cancel_timers()
        if self._worker is not None:
            self._worker.end(LEAVING_GRACE_SECONDS if self._worker.is_ready else HANGING_GRACE_SECONDS)
            await self._worker_ended.wait()

    def close(self) -> None:
        """Kill the zygote with all that it started."""
        self._is_leaving = True
        self._cancel_timers()
        if self._zygote is not None:
            self._zygote.kill()
            self._zygote = None

    def check_deadline(self, request: PendingRequest, now_seconds: float) -> float:
        """Refuse a late request with 504, and end a worker that runs its call past the hard deadline; see `RequestQueue`.

        The hard deadline follows from the function's timeout, not the caller's: a short `Request-Timeout` must not end a worker.
        """
        if now_seconds < request.deadline_seconds:
            return request.deadline_seconds
        if request.sink is not None:
            self._queue.expire(request, STARTING_TIMEOUT if self.state is ServingState.STARTING else _LATE)
        if not request.number:
            return math.inf
        timeout_seconds = self.declaration.timeout_seconds
        longest_seconds = timeout_seconds + min(timeout_seconds, LONGEST_GRACE_SECONDS)
        hard_seconds = self._queue.latest_begin_seconds(request) + longest_seconds
        if now_seconds < hard_seconds:
            return hard_seconds
        self.end_worker("a call went on long after its deadline")
        return math.inf

    def probe_health(self, interval_seconds: float) -> None:
        """Probe an idle worker at an interval: a GPU may drop off PCIe between calls. Busy workers have deadlines instead."""
        now = time.monotonic()
        if self.state is ServingState.HOT and not self._queue.size:
            if self._probed_seconds is None:
                self._probed_seconds = now
                self._queue.send_frame(_HEALTH)
            elif now - self._probed_seconds > self.declaration.timeout_seconds:
                self.end_worker("health() does not answer")
        self._loop.call_later(interval_seconds, self.probe_health, interval_seconds)

    def on_frames(self, frames: Sequence[CallFrame]) -> None:
        self._queue.on_frames(frames)

    def on_notification(self, worker: WorkerProcess, notification: Notification) -> None:
        if notification.name == "ready" and worker.mark is not None and not worker.is_ready:
            self._on_ready(worker, worker.mark, float(notification.data["load_seconds"]))
        elif notification.name == "failed":
            worker.failure = str(notification.data["error"])
        elif notification.name == "health":
            self._probed_seconds = None
            if not notification.data["is_well"]:
                self.end_worker("health() says no")

    def on_ended(self, worker: WorkerProcess) -> None:
        """Start the next worker: at once if this one was ready, else after a pause."""
        self._worker = self._probed_seconds = None
        self._cancel_timers()
        # The exit status of an OOM kill is SIGKILL, as of any other kill: only the count of the control group tells them apart.
        is_short = self._oom_kills.is_another()
        self.reason = NO_HOST_MEMORY if is_short else self.reason
        # Before the next start: requests that had not begun wait for the next worker, in their order.
        self._queue.unseat(OUT_OF_MEMORY if is_short else WORKER_DIED)
        if self._is_leaving:
            self._worker_ended.set()
            return
        if self._is_parked:
            return
        # A worker that was never ready failed to start: backoff. One that was ready died while serving: at once.
        if not worker.is_ready:
            self._on_failed_start(worker.failure or self.reason or "the worker died while it started")
            return
        self._metrics.restarts += 1
        _log.info("the worker ended%s; another one starts", f" ({self.reason})" if self.reason else "")
        self.state = ServingState.STARTING
        too_soon = self._queue.hot_since_seconds + _SHORTEST_LIFE_SECONDS - time.monotonic()
        if too_soon > 0:
            self._pause = self._loop.call_later(too_soon, self.start)
        else:
            self.start()

    def _on_ready(self, worker: WorkerProcess, mark: StartedMark, load_seconds: float) -> None:
        self._cancel_timers()
        worker.is_ready = True
        self._metrics.starts += 1
        self._failures, self.reason = 0, None
        if self.state is not ServingState.DRAINING:
            self.state, self._queue.closed = ServingState.PARKED if self._is_parked else ServingState.HOT, None
        self._queue.seat(WorkerSlot(worker.channel, mark), load_seconds)
        if self._is_parked:
            self._queue.pause()

    def _spawn_worker(self, zygote: ZygoteConnection) -> None:
        # The worker inherits its end through the zygote: it exists before the process, so no call can be lost.
        ours, theirs = socket.socketpair()
        self._worker = WorkerProcess(ours, self)
        self._spawned += 1
        zygote.spawn_worker(self._spawned, theirs)

    def _on_zygote_notification(self, number: int, notification: Notification, file: int | None) -> None:
        if notification.name == "imported":
            self.declaration = parse_declaration(notification.data["declaration"])
            self._queue.adopt(self.declaration)
            self.pages = notification.data["pages"]
            self.import_seconds = float(notification.data["import_seconds"])
            self._is_imported = True
            if self._zygote is not None and self._worker is None and self._pause is None and not self._is_parked:
                self._spawn_worker(self._zygote)
        elif notification.name == "failed":
            self.reason = str(notification.data["error"])
        elif notification.name == "born" and file is not None:
            if self._worker is None or number != self._spawned:  # given up before the zygote had forked it
                end_process(file)
            else:
                self._worker.set_process(file)
        elif notification.name == "ended":
            _log.info("worker %s ended with status %s", notification.data["pid"], notification.data["status"])

    def _on_zygote_end(self) -> None:
        # The import failed, or the zygote was killed. Its workers die with it, and the next start spawns a new one.
        self._zygote = None
        if self._worker is None and not self._is_leaving and not self._is_parked:
            short = NO_HOST_MEMORY if self._oom_kills.is_another() else None
            self._on_failed_start(short or self.reason or "the zygote died")

    def _limit_start(self) -> None:
        self._start_timeout = self._loop.call_later(self.declaration.startup_timeout_seconds, self._on_start_timeout)

    def _on_start_timeout(self) -> None:
        self.reason = "starting_timeout"
        self._start_timeout = None
        if not self._queue.closed:
            self._queue.refuse_queue(STARTING_TIMEOUT)
        if self._worker is not None:
            # on_ended() follows and schedules the next start.
            self._worker.kill()
        elif self._zygote is not None:
            self._zygote.kill()
            self._on_zygote_end()

    def _on_failed_start(self, reason: str) -> None:
        """Schedule the next start; after several failures refuse requests until one succeeds."""
        self._cancel_timers()
        self._failures += 1
        self.reason = reason
        pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** (self._failures - 1))
        if self._failures >= _MOST_FAILURES:
            pause = _LONGEST_PAUSE_SECONDS
            if self.state is not ServingState.DRAINING:
                self.state = ServingState.FAILED
                after = {"retry-after": f"{_LONGEST_PAUSE_SECONDS:.0f}"}
                refusal = Refusal(503, "crash_loop", "the function could not be started several times", after)
                self._queue.closed = refusal
                self._queue.refuse_queue(refusal)
        _log.info("start %d failed (%s); another one in %g s", self._failures, reason, pause)
        self._pause = self._loop.call_later(pause, self.start)

    def _cancel_timers(self) -> None:
        for timer in (self._pause, self._start_timeout):
            if timer is not None:
                timer.cancel()
        self._pause = self._start_timeout = None
