"""The life of one job as its supervisor lives it: wait, start or adopt, accompany, end, linger, go.

It decides nothing: each step is one of the modules beside this one, and each change is one decision of the engine.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable

from pgpu.engine.context import SIGNAL_PREFIX, WINDOW_PREFIX
from pgpu.engine.engine import Engine
from pgpu.engine.event_loop import READABLE, EventLoop
from pgpu.engine.history.retry_policy import EndedRun, NextTry, begin_metrics, measure_trace, observe_end, queue_again
from pgpu.engine.leases.departure import Departure
from pgpu.engine.leases.eviction import PlaceRefusedError, give_back, occupants
from pgpu.engine.leases.recovery import mark_lost
from pgpu.engine.streams.carrier import Carrier
from pgpu.engine.supervisor.claiming import claim
from pgpu.engine.supervisor.endings import failed, warned
from pgpu.engine.supervisor.left_behind import LeftBehind, Marked
from pgpu.engine.supervisor.running import Running
from pgpu.engine.supervisor.standing import Standing
from pgpu.engine.supervisor.starting import adopt, start
from pgpu.engine.supervisor.suspension import Suspension
from pgpu.engine.unix_sockets import bind
from pgpu.errors import (
    CancelledError,
    EngineAwayError,
    LedgerError,
    LedgerGoneError,
    NotReadyError,
    PgpuBug,
    PgpuError,
)
from pgpu.host.stderr_log import Complaints, say, say_traceback
from pgpu.ledger import Entry
from pgpu.model import Job, JobState
from pgpu.runtimes import RunningJob
from pgpu.structs import replace

LINGER_PAUSES_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05)
"""How often a lease is looked at whose job ended and whose memory a forked child may still hold; the last repeated."""

LOOKS_AT_WHAT_LINGERS = 20
"""After so many looks, about a second, those who still hold it are let go on."""

LAST_WORD_SECONDS = 0.5
"""How long followers wait for the memory of a job that ended."""

PLACE_PAUSE_SECONDS = 0.05
"""How often a job looks whether those have left whose place it has."""

RETRY_SECONDS = 1.0
"""How long to wait before the ledger is tried again, when a job's end could not be written."""

_MOST_WORD_BYTES = 64


def supervise(engine: Engine, job_id: str) -> None:
    """Look after one job until nothing is left to be done for it; does nothing if somebody else does.

    Raises:
        PgpuError: The ledger cannot be used.
    """
    entry = claim(engine, job_id)
    if entry is not None:
        supervisor = _Supervisor(engine, entry)
        try:
            supervisor.run()
        finally:
            supervisor.close()
        supervisor.try_again()


class _Supervisor:
    """The life of one job."""

    def __init__(self, engine: Engine, entry: Entry) -> None:
        self._engine = engine
        self._job = entry.job
        self._places = engine.places(entry.job.id)
        self._places.make()
        self._loop = EventLoop()
        self._wake = bind(socket.SOCK_DGRAM, self._places.wake_socket)
        self._loop.watch(self._wake.fileno(), READABLE, lambda _: self._read_wake())
        self._carrier = Carrier(
            self._loop,
            entry.job.id,
            entry.job.spec,
            self._places,
            engine.settings.log_cap_bytes,
            lambda: engine.gpu_locks,
        )
        self._running: RunningJob | None = None
        self._on_wake: Callable[[], None] = lambda: None
        self._signals: list[int] = []
        self._complaints = Complaints()
        self._lesson: EndedRun | None = None
        self._next_try: NextTry | None = None
        self._marked = Marked(engine, entry.job.id)
        self._suspension = Suspension(engine, Departure(engine, entry.job.id, self._marked.owns))
        self._is_given_back = False
        """Whether it was granted a place that others could not leave."""

        self._standing = Standing(engine, self._loop, entry.job.id)

    def run(self) -> None:
        """Do whatever the job's state asks for, until it is final and its memory is free.

        A job that no ledger has is ended: nobody could see or stop it, or count what it holds.
        """
        try:
            self._run()
        except LedgerGoneError as exc:
            say(f"{exc}: job {self._job.id} and its supervisor end")
            self._kill_running()
            self._next_try, self._is_given_back = None, False

    def _run(self) -> None:
        try:
            self._live()
        except LedgerGoneError:
            raise
        except PlaceRefusedError as exc:
            self._complain(exc)
            self._is_given_back = True
            return
        except PgpuError as exc:
            self._end(failed(exc))
        except Exception as exc:  # noqa: BLE001 - the engine's loop: a bug of ours must not leave a job without an end
            say_traceback()
            self._kill_running()
            self._end(failed(PgpuBug(f"a bug in pgpu: {exc!r}")))
        self._linger()
        self._standing.close()

    def try_again(self) -> None:
        """Queue a job that wants another try, once nothing of this one is left; whoever comes by gives it a supervisor."""
        while self._next_try is not None or self._is_given_back:
            try:
                self._queue_again()
            except LedgerGoneError as exc:
                self._complain(exc)
                return
            except LedgerError as exc:
                self._complain(exc)
                threading.Event().wait(RETRY_SECONDS)
            else:
                return

    def _queue_again(self) -> None:
        if self._next_try is not None:
            queue_again(self._engine, self._next_try)
        else:
            give_back(self._engine, self._job.id)

    def close(self) -> None:
        """Let go of everything."""
        self._close_running()
        self._marked.close()
        self._carrier.close()
        self._wake.close()
        self._loop.close()
        self._places.remove_live()

    def _live(self) -> None:
        if self._job.holder is None and self._job.request.gpu_count:
            self._engine.hold_gpus()
        if self._job.state is JobState.STARTING and self._job.holder is None:
            self._running = self._start()
        if self._running is None and not self._job.state.is_final:
            self._adopt()
        if self._running is not None:
            self._accompany(self._running)

    def _start(self) -> RunningJob | None:
        """A ledger or a container engine that refuses for a while fails no job: nothing ran, so it is started again.

        Returns:
            None where it may run already: it was announced, and the engine went away before it said so.
        """
        while self._job.holder is None:
            try:
                self._await_place()
                return start(self._engine, self._job, self._carrier)
            except LedgerError as exc:
                self._complain(exc)
            except (EngineAwayError, NotReadyError) as exc:
                self._say_why_not(str(exc))
            self._pause(RETRY_SECONDS)
        return None

    def _await_place(self) -> None:
        """Wait until those have left who were suspended for this job.

        Raises:
            PlaceRefusedError: One of them cannot.
            CancelledError: Somebody asked to stop it.
        """
        told: tuple[str, ...] = ()
        while stays := occupants(self._engine, self._job):
            if stays != told:
                self._engine.wake(stays)
                self._say_why_not(f"waits until {', '.join(f'job {job_id}' for job_id in stays)} has made room")
                told = stays
            self._refuse_if_stopped()
            self._pause(PLACE_PAUSE_SECONDS)

    def _refuse_if_stopped(self) -> None:
        if self._engine.ledger.entry(self._job.id).stop_grace_seconds is not None:
            raise CancelledError(f"job {self._job.id} was stopped before it was started")

    def _say_why_not(self, reason: str) -> None:
        """Tell why a granted job is not started, unless somebody asked to stop it.

        Raises:
            CancelledError: Somebody did.
        """
        try:
            entry = self._engine.ledger.entry(self._job.id)
            if entry.job.reason != reason:
                with self._engine.ledger.decision() as decision:
                    entry = decision.entry(self._job.id)
                    entry = replace(entry, job=replace(entry.job, reason=reason))
                    decision.put(entry)
        except LedgerError as exc:
            self._complain(exc)
            return
        self._job = entry.job
        if entry.stop_grace_seconds is not None and entry.job.holder is None:
            raise CancelledError(f"job {self._job.id} was stopped before it was started")

    def _adopt(self) -> None:
        try:
            self._engine.hold_gpus()
        except PgpuError as exc:
            self._complain(exc)  # It runs already, on the word of its lease; it is not ended for what others did.
        self._running = self._adopted()
        if self._running is None:
            self._end(lambda job: mark_lost(job, time.time()))

    def _adopted(self) -> RunningJob | None:
        """A container engine that is away ends nothing: what ran there may run on, or its end is told when it is back."""
        has_complained = False
        while True:
            try:
                return adopt(self._engine, self._job, self._carrier)
            except EngineAwayError as exc:
                if not has_complained:
                    self._complain(exc)
                has_complained = True
                self._pause(RETRY_SECONDS)

    def _accompany(self, running: RunningJob) -> None:
        self._carrier.on_window = lambda columns, rows: running.resize_terminal(os.terminal_size((columns, rows)))
        life = Running(self._engine, self._loop, self._job, running, self._signals)
        self._on_wake = life.woken
        metrics = begin_metrics(self._engine, self._job)
        self._suspension = life.suspension
        final = life.until_ended()
        self._carrier.drain()
        self._lesson = observe_end(self._engine, life.observed, measure_trace(self._engine, self._job, metrics))
        what_follows = self._what_follows(final)
        if isinstance(what_follows, NextTry):
            self._next_try = what_follows  # The job ends for nobody but its history.
        else:
            self._end(warned(final, what_follows))

    def _what_follows(self, final: Callable[[Job], Job]) -> NextTry | str | None:
        """Of a job that hit its own limit and wants another try: that, or why there is none."""
        try:
            with self._engine.ledger.view() as view:
                entry = view.entry(self._job.id)
                is_asked_to_stop = entry.stop_grace_seconds is not None
                if self._lesson is None or is_asked_to_stop:
                    return None
                return self._lesson.follow(view, final(entry.job))
        except PgpuError as exc:
            self._complain(exc)
            return None

    def _end(self, final: Callable[[Job], Job]) -> None:
        """Write how the job ended, however long the ledger refuses."""
        while True:
            try:
                with self._engine.ledger.decision() as decision:
                    entry = decision.entry(self._job.id)
                    if not entry.job.state.is_final:
                        entry = replace(entry, job=final(entry.job))
                        decision.put(entry)
                        if self._lesson is not None:
                            self._lesson.learn(decision, entry.job)
            except LedgerError as exc:
                self._complain(exc)
                self._pause(RETRY_SECONDS)
            else:
                self._job = entry.job
                return

    def _linger(self) -> None:
        """Keep the lease as long as anything may hold its memory, then give it back.

        Followers are told the end once the memory is free, so that whoever comes after them finds it free; or soon
        after, if processes that the job left behind keep it.
        """
        self._on_wake = self._stop_what_lingers
        if self._next_try is None:  # else nobody is told an end: followers go on with the next try
            self._loop.call_later(LAST_WORD_SECONDS, self._carrier.finish)
        looks, left = 0, LeftBehind(self._engine, self._suspension)
        while not self._try_release():
            if looks % LOOKS_AT_WHAT_LINGERS == LOOKS_AT_WHAT_LINGERS - 1:
                self._patiently(lambda: left.look(self._job.id))
            self._pause(LINGER_PAUSES_SECONDS[min(looks, len(LINGER_PAUSES_SECONDS) - 1)])
            looks += 1
        left.close()
        # Before the last word too: a container is gone, and its name free, when its caller hears of its end.
        self._close_running()
        if self._next_try is None:
            self._carrier.finish()

    def _close_running(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            self._patiently(running.close)

    def _try_release(self) -> bool:
        try:
            if self._job.lease is not None and self._engine.enforcer.is_held(self._job.lease):
                return False
            if self._next_try is None:
                self._engine.release(self._job.id)
        except PgpuError as exc:
            self._complain(exc)
            self._pause(RETRY_SECONDS)
            return False
        return True

    def _stop_what_lingers(self) -> None:
        """A job that ended left processes behind, and now somebody asked to stop them."""
        try:
            is_asked = self._engine.ledger.entry(self._job.id).stop_grace_seconds is not None
        except LedgerError as exc:
            self._complain(exc)
            return
        if is_asked and self._running is None:
            self._patiently(self._marked.kill)
        elif is_asked:
            self._kill_running()

    def _kill_running(self) -> None:
        if self._running is not None:
            self._patiently(self._running.kill)

    def _patiently(self, act: Callable[[], None]) -> None:
        try:
            act()
        except PgpuError as exc:
            self._complain(exc)

    def _read_wake(self) -> None:
        """Take every message that is there: words to look again, and signals for the job."""
        with contextlib.suppress(BlockingIOError):
            while True:
                words = self._wake.recv(_MOST_WORD_BYTES).split()
                if words[:1] == [SIGNAL_PREFIX]:
                    self._signals.append(int(words[1]))
                elif words[:1] == [WINDOW_PREFIX]:
                    self._carrier.set_window(int(words[1]), int(words[2]))
        self._on_wake()

    def _pause(self, seconds: float) -> None:
        """Serve the followers for a while."""
        is_over: list[bool] = []
        self._loop.call_later(seconds, lambda: is_over.append(True))
        self._loop.run_until(lambda: bool(is_over))

    def _complain(self, exc: PgpuError) -> None:
        self._complaints.say(exc)
