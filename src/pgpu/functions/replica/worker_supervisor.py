"""The keeper: sees to it that there is a worker, and knows what to say when there is none.

It refuses to touch requests beyond telling the desk whether there is a worker: who is answered with what is decided there.
"""

import asyncio
import socket
import sys
import time
from collections.abc import Callable, Sequence

from pgpu.functions.api import Declaration, parse_declaration
from pgpu.functions.ipc.call_frames import Frame
from pgpu.functions.ipc.messages import Notification
from pgpu.functions.protocols.call_refusal import Refusal
from pgpu.functions.replica.oom_kills import OomKillCounter
from pgpu.functions.replica.request_queue import WORKER_DIED, RequestQueue, WorkerSlot
from pgpu.functions.replica.serving_state import ServingState
from pgpu.functions.replica.worker_process import (
    HANGING_GRACE_SECONDS,
    LEAVING_GRACE_SECONDS,
    WorkerProcess,
    end_process,
)
from pgpu.functions.replica.zygote_connection import ZygoteConnection
from pgpu.functions.replica.zygote_process import ServedFunction, ZygoteProcess, spawn_zygote
from pgpu.functions.requests.request_metrics import ReplicaMetrics

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 30.0
_MOST_FAILURES = 5
_SHORTEST_LIFE_SECONDS = 0.1
"""A worker that was ready is replaced at once, but not more often than this."""


class WorkerSupervisor:
    """Keeps one worker alive."""

    def __init__(self, function: ServedFunction, desk: RequestQueue, metrics: ReplicaMetrics) -> None:
        """Begin with nothing; `start()` begins the work.

        Raises:
            RequestError: The declaration says what cannot be.
        """
        self._function, self._desk, self._metrics = function, desk, metrics
        self.declaration = self.declaration_of(function)
        self._state = ServingState.COLD
        self.on_state: Callable[[], None] = lambda: None
        """Told of each change of the state, before the rest has changed with it."""

        self.reason: str | None = None
        """Why it is not hot, in a word or two; never more than an exception's type."""

        self.import_seconds = 0.0
        """What importing the function's module took; 0 until then."""

        self.pages: dict[str, bytes] = {}
        """What the function says about itself, JSON by path; empty until its module was imported."""

        self.asked_seconds: float | None = None
        """When the worker was asked how it is, while it owes the answer."""

        self._memory_kills = OomKillCounter()
        self._failures = 0
        self._asked = 0
        """How many workers were asked for; the last one's number."""

        self._zygote: ZygoteConnection | None = None
        self.first: ZygoteProcess | None = None
        """A zygote that was started before this; None: one is started when it is needed."""

        self._is_imported = False
        self._worker: WorkerProcess | None = None
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._is_leaving = False
        self._is_aside = False
        """Whether no worker is started, and none gets calls: it has no slice, or nobody is expected to call."""

        self._has_slice = True

        self._gone = asyncio.Event()

    @staticmethod
    def declaration_of(function: ServedFunction) -> Declaration:
        """Return what is known before the module is imported.

        Raises:
            RequestError: The declaration says what cannot be.
        """
        return parse_declaration(function.words)

    @property
    def state(self) -> ServingState:
        """What the replica is doing."""
        return self._state

    @state.setter
    def state(self, state: ServingState) -> None:
        if self._state is not ServingState.DRAINING:  # whoever leaves, leaves
            self._state = state
            self.on_state()

    @property
    def restarts(self) -> int:
        """Workers that ended unasked since the front started."""
        return self._metrics.restarts

    def start(self) -> None:
        """Have a worker, from the zygote if it is there."""
        self._pause = None
        if self.state is not ServingState.FAILED:
            self.state = ServingState.STARTING
        self._patience = self._loop.call_later(self.declaration.startup_timeout_seconds, self._too_slow)
        if self._zygote is None:
            self._is_imported = False
            first, self.first = self.first, None
            self._zygote = ZygoteConnection(
                first or spawn_zygote(self._function), self._on_zygote_told, self._on_zygote_end
            )
        elif self._is_imported:
            self._ask_for_worker(self._zygote)

    def stand_aside(self) -> None:
        """The slice is taken: the worker gets no calls, and if it dies none follows before `go_on()`."""
        self._has_slice = False
        self._rest()

    def _rest(self) -> None:
        if not self._is_aside and not self._is_leaving:
            self._is_aside = True
            self._cancel_timers()
            self._desk.rest()
            self.state = ServingState.PARKED

    def park(self) -> None:
        """Nobody is expected to call: the worker ends, and what it holds with it; its zygote stays. Not while somebody calls."""
        if self._desk.requests:
            return
        self._rest()
        if self._is_aside and self._worker is not None:
            self._worker.end(LEAVING_GRACE_SECONDS)

    def wake(self) -> None:
        """Somebody calls: as if it had never been parked, but where its slice was taken, which only `go_on()` gives back."""
        if self._has_slice:
            self.go_on()

    def go_on(self) -> None:
        """There is a slice again: the worker goes on, or another one starts."""
        self._has_slice = True
        if not self._is_aside:
            self.on_state()  # it was taken and given back before we saw it: who waits for news has some
            return
        self._is_aside, self.asked_seconds = False, None
        worker = self._worker
        if worker is None:
            self.start()
        elif worker.is_ready and not worker.is_ending:
            self._desk.go_on()
            self.state = ServingState.HOT
        else:
            self.state = ServingState.STARTING
            self._patience = self._loop.call_later(self.declaration.startup_timeout_seconds, self._too_slow)

    def end_worker(self, reason: str) -> None:
        """End the worker, which hangs or is ill; another follows."""
        if self._worker is not None:
            self.reason = reason
            log(f"the worker is ended: {reason}")
            self._worker.end(HANGING_GRACE_SECONDS)

    async def leave(self) -> None:
        """Have the worker close its handler and end, and start no other; requests were served before."""
        self._is_leaving = True
        self._cancel_timers()
        if self._worker is not None:
            self._worker.end(LEAVING_GRACE_SECONDS if self._worker.is_ready else HANGING_GRACE_SECONDS)
            await self._gone.wait()

    def close(self) -> None:
        """Leave nothing behind."""
        self._is_leaving = True
        self._cancel_timers()
        if self._zygote is not None:
            self._zygote.kill()
            self._zygote = None

    @property
    def has_worker(self) -> bool:
        """Say whether a worker process is there, ready or not."""
        return self._worker is not None

    def on_frames(self, frames: Sequence[Frame]) -> None:
        """Pass on what the worker says about calls."""
        self._desk.on_frames(frames)

    def on_told(self, worker: WorkerProcess, tell: Notification) -> None:
        """The worker is ready, or could not be constructed, or says how it is."""
        if tell.name == "ready" and worker.mark is not None and not worker.is_ready:
            self._ready(worker, float(tell.data["load_seconds"]))
        elif tell.name == "failed":
            worker.failure = str(tell.data["error"])
        elif tell.name == "health":
            self.asked_seconds = None
            if not tell.data["is_well"]:
                self.end_worker("health() says no")

    def on_ended(self, worker: WorkerProcess) -> None:
        """The worker is gone: another one, at once if it had been ready."""
        self._worker = self.asked_seconds = None
        self._cancel_timers()
        is_short = self._memory_kills.is_another()
        self.reason = NO_HOST_MEMORY if is_short else self.reason
        self._desk.unseat(OUT_OF_MEMORY if is_short else WORKER_DIED)
        if self._is_leaving:
            self._gone.set()
            return
        if self._is_aside:
            return
        if not worker.is_ready:
            self._failed(worker.failure or self.reason or "the worker died while it started")
            return
        self._metrics.restarts += 1
        log(f"the worker ended{f' ({self.reason})' if self.reason else ''}; another one starts")
        self.state = ServingState.STARTING
        too_soon = self._desk.hot_since_seconds + _SHORTEST_LIFE_SECONDS - time.monotonic()
        if too_soon > 0:
            self._pause = self._loop.call_later(too_soon, self.start)
        else:
            self.start()

    def _ready(self, worker: WorkerProcess, load_seconds: float) -> None:
        self._cancel_timers()
        worker.is_ready = True
        self._metrics.starts += 1
        self._failures, self.reason = 0, None
        if self.state is not ServingState.DRAINING:
            self.state, self._desk.closed = ServingState.PARKED if self._is_aside else ServingState.HOT, None
        assert worker.mark is not None  # noqa: S101 - looked at by on_told
        self._desk.seat(WorkerSlot(worker.channel, worker.mark), load_seconds)
        if self._is_aside:
            self._desk.rest()

    def _ask_for_worker(self, zygote: ZygoteConnection) -> None:
        ours, theirs = socket.socketpair()
        self._worker = WorkerProcess(ours, self)
        self._asked += 1
        zygote.ask_for_worker(self._asked, theirs)

    def _on_zygote_told(self, number: int, tell: Notification, file: int | None) -> None:
        if tell.name == "imported":
            self.declaration = parse_declaration(tell.data["declaration"])
            self._desk.adopt(self.declaration)
            self.pages = tell.data["pages"]
            self.import_seconds = float(tell.data["import_seconds"])
            self._is_imported = True
            if self._zygote is not None and self._worker is None and self._pause is None and not self._is_aside:
                self._ask_for_worker(self._zygote)
        elif tell.name == "failed":
            self.reason = str(tell.data["error"])
        elif tell.name == "born" and file is not None:
            self._on_born(number, file)
        elif tell.name == "ended":
            log(f"worker {tell.data['pid']} ended with status {tell.data['status']}")

    def _on_born(self, number: int, pidfd: int) -> None:
        if self._worker is None or number != self._asked:  # it was given up before its birth was told
            end_process(pidfd)
        else:
            self._worker.born(pidfd)

    def _on_zygote_end(self) -> None:
        """It could not import, or was killed: its workers die with it, and are replaced through a new one."""
        self._zygote = None
        if self._worker is None and not self._is_leaving and not self._is_aside:
            short = NO_HOST_MEMORY if self._memory_kills.is_another() else None
            self._failed(short or self.reason or "the zygote died")

    def _too_slow(self) -> None:
        self.reason = "starting_timeout"
        self._patience = None
        if not self._desk.closed:
            self._desk.refuse_queue(STARTING_TIMEOUT)
        if self._worker is not None:
            self._worker.kill()
        elif self._zygote is not None:
            self._zygote.kill()
            self._on_zygote_end()

    def _failed(self, reason: str) -> None:
        """A start failed: try again later, and refuse what comes once that is hopeless."""
        self._cancel_timers()
        self._failures += 1
        self.reason = reason
        pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** (self._failures - 1))
        if self._failures >= _MOST_FAILURES:
            pause = _LONGEST_PAUSE_SECONDS
            self._crash_loop()
        log(f"start {self._failures} failed ({reason}); another one in {pause:g} s")
        self._pause = self._loop.call_later(pause, self.start)

    def _crash_loop(self) -> None:
        if self.state is not ServingState.DRAINING:
            self.state = ServingState.FAILED
            after = {"retry-after": f"{_LONGEST_PAUSE_SECONDS:.0f}"}
            self._desk.closed = Refusal(503, "crash_loop", "the function could not be started several times", after)
            self._desk.refuse_queue(self._desk.closed)

    def _cancel_timers(self) -> None:
        for timer in (self._pause, self._patience):
            if timer is not None:
                timer.cancel()
        self._pause = self._patience = None


NO_HOST_MEMORY = "it needed more host memory than its container has"
OUT_OF_MEMORY = Refusal(502, "worker_died", "the worker ran out of host memory while it served this request")
STARTING_TIMEOUT = Refusal(503, "starting_timeout", "the function did not start in time", {"retry-after": "5"})


def log(line: str) -> None:
    """Write a line to the job's log."""
    sys.stderr.write(f"pgpu: {line}\n")
    sys.stderr.flush()
