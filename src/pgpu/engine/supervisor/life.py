"""The steps of a job's supervision: wait for its place, start or adopt it, watch it, record its end, release its lease.

This module orders the steps; the modules beside it carry them out. Each change of the ledger is one transaction, so a crash
between two steps leaves a state from which the next agent continues.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator

from pgpu.engine.context import SIGNAL_PREFIX, WINDOW_PREFIX
from pgpu.engine.engine import Engine
from pgpu.engine.event_loop import READABLE, EventLoop
from pgpu.engine.history.retry_policy import EndedRun, NextTry, begin_metrics, measure_trace, observe_end, queue_again
from pgpu.engine.leases.departure import Departure
from pgpu.engine.leases.eviction import PlaceRefusedError, give_back, occupants
from pgpu.engine.leases.recovery import mark_lost
from pgpu.engine.settings import MOST_END_DELAY_SECONDS
from pgpu.engine.streams.carrier import Carrier
from pgpu.engine.streams.engines_streams import EnginesStreams
from pgpu.engine.streams.no_streams import NoStreams
from pgpu.engine.supervisor.left_behind import Marked, follow_holds
from pgpu.engine.supervisor.running import Running
from pgpu.engine.supervisor.starting import TakeMonitor, adopt, claim, failed, start
from pgpu.engine.supervisor.suspension import Suspension
from pgpu.engine.unix_sockets import bind
from pgpu.engine.watch.gpu_time import read_samples
from pgpu.errors import (
    CancelledError,
    EngineAwayError,
    JobNotFoundError,
    LedgerError,
    LedgerGoneError,
    NotReadyError,
    PgpuBug,
    PgpuError,
)
from pgpu.host.process_identity import is_alive
from pgpu.host.stderr_log import Complaints, log_to_file, say, say_traceback
from pgpu.host.thread_turns import pause, turn
from pgpu.ledger import Decision, Entry
from pgpu.model import Job, JobState, ProcessHolder
from pgpu.runtimes import RunningJob
from pgpu.runtimes.kept_descriptors import drop
from pgpu.structs import replace

LINGER_PAUSES_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05)
"""Pauses between checks whether an ended job's memory is free (a forked child may hold it); the last is repeated."""

CHECKS_PER_HOLD_UPDATE = 20
"""One of so many checks, about one a second, also updates the holds on the processes that are left."""

PLACE_PAUSE_SECONDS = 0.05
"""Polling interval while a granted job waits for suspended or evicted jobs to leave its place."""

RETRY_SECONDS = 1.0
"""Pause before a failed access to the ledger, the container engine or a GPU is repeated."""

_MOST_WORD_BYTES = 64


def supervise(engine: Engine, job_id: str) -> None:
    """Supervise one job in the calling thread until its lease is released; does nothing if another process supervises it.

    Raises:
        PgpuError: The ledger cannot be used.
    """
    for _ in supervision(engine, job_id):
        pass  # Nothing has happened for a time; it goes on to wait.


def supervision(
    engine: Engine,
    job_id: str,
    take_monitor: TakeMonitor = lambda _job_id, _starter: None,
    make_loop: Callable[[], EventLoop] = EventLoop,
) -> Generator[EventLoop, None, None]:
    """Supervise one job as `supervise` does, and yield its loop while the job runs and nothing happens (`EventLoop.calm_until`).

    Each step between two yields runs in any one thread, with a turn of it, and logs to the job's file.

    Args:
        engine: With the settings of the job's submitter.
        job_id: The job.
        take_monitor: Returns the monitor that a process offers for its job, called before each start of such a job.
        make_loop: Returns a new event loop.

    Raises:
        PgpuError: The ledger cannot be used.
    """
    steps = _supervision(engine, job_id, take_monitor, make_loop)
    loop = None
    while True:
        with log_to_file(engine.places(job_id).supervisor_log), turn(has_begun=loop is not None):
            loop = next(steps, None)
        if loop is None:
            return
        yield loop


def _supervision(
    engine: Engine, job_id: str, take_monitor: TakeMonitor, make_loop: Callable[[], EventLoop]
) -> Iterator[EventLoop]:
    entry = claim(engine, job_id)
    if entry is None:
        return
    with contextlib.closing(make_loop()) as loop:
        supervisor = _Supervisor(engine, entry, take_monitor, loop)
        try:
            yield from supervisor.run()
        except GeneratorExit:
            raise  # This process ends, and the job runs on under the next agent: its monitor and its files stay.
        except BaseException:  # KeyboardInterrupt, too: nothing else would close the job's sockets and descriptors
            supervisor.close()
            raise
        supervisor.close()
    supervisor.try_again()


class _NeverRanError(PgpuError):
    """The agent that started a job ended before the job's command was executed; so the job is queued again, at its place."""


class _Supervisor:
    """The supervision of one job, on an event loop of its own."""

    def __init__(self, engine: Engine, entry: Entry, take_monitor: TakeMonitor, loop: EventLoop) -> None:
        self._engine = engine
        self._take_monitor = take_monitor
        self._job = entry.job
        self._places = engine.places(entry.job.id)
        self._places.make()
        self._loop = loop
        self._wake = bind(socket.SOCK_DGRAM, self._places.wake_socket)
        self._loop.watch(self._wake.fileno(), READABLE, lambda _: self._read_wake())
        self._carrier = self._make_carrier()
        self._running: RunningJob | None = None
        self._on_wake: Callable[[], None] = lambda: None
        self._signals: list[int] = []
        self._log = Complaints().say
        self._ended_run: EndedRun | None = None
        self._next_try: NextTry | None = None
        self._marked = Marked(engine, entry.job.id)
        self._suspension = Suspension(engine, Departure(engine, entry.job.id, self._marked.owns))
        self._is_given_back = False
        """Whether the job lost its place, because a job there could not leave, and must be queued again."""

        self._is_released = False
        """Whether nothing holds its memory any more, and its lease, unless it is tried again, was given back."""

        self._entry = engine.ledger.cached(lambda: engine.ledger.entry(entry.job.id))
        self._ledger_timer = loop.call_on_beat(self._check_ledger)

    def _make_carrier(self) -> Carrier | NoStreams:
        if not self._job.spec.has_program:
            return NoStreams()
        if self._job.spec.runtime == "oci":
            return EnginesStreams(self._loop, self._places)
        return Carrier(
            self._loop,
            self._job.id,
            self._job.spec,
            self._places,
            self._engine.settings.log_cap_bytes,
            lambda: self._engine.gpu_locks.descriptors,
        )

    def run(self) -> Iterator[EventLoop]:
        """Continue from the job's state in the ledger until the job is final and its memory is free.

        A job that is in no ledger any more is killed: no command could list or stop it, and no round would count its memory.
        """
        try:
            yield from self._run()
        except LedgerGoneError as exc:
            say(f"{exc}: job {self._job.id} and its supervision end")
            self._kill_running()
            self._places.remove_records()
            self._next_try, self._is_given_back = None, False

    def _run(self) -> Iterator[EventLoop]:
        try:
            yield from self._supervise()
        except LedgerGoneError:
            raise
        except (PlaceRefusedError, _NeverRanError) as exc:
            self._log(exc)
            self._is_given_back = True
            return
        except PgpuError as exc:
            has_run = self._running is not None or self._job.holder is not None
            self._log_errors(self._read_job)
            self._end(failed(exc, has_run=has_run))
        except Exception as exc:  # noqa: BLE001 - the engine's loop: a bug of ours must not leave a job without an end
            say_traceback()
            self._kill_running()
            self._log_errors(self._read_job)
            self._end(failed(PgpuBug(f"a bug in pgpu: {exc!r}")))
        while not self._has_lingered():
            with pause():
                threading.Event().wait(RETRY_SECONDS)
        self._ledger_timer.cancel()

    def _check_ledger(self) -> None:
        """Raise `LedgerGoneError` if the ledger was removed or replaced by one without the job; called each second.

        Not left to other accesses: they retry or log their errors, since a temporary one, as of a full disk, ends no job.
        """
        self._ledger_timer = self._loop.call_on_beat(self._check_ledger)
        ledger = self._engine.ledger
        ledger.refuse_if_gone()
        try:
            with contextlib.suppress(LedgerError):
                self._entry.get()
        except JobNotFoundError as exc:
            raise LedgerGoneError(f"the ledger {ledger.path} was replaced, and has no job {self._job.id}") from exc

    def try_again(self) -> None:
        """Queue the job again for its next try or another place, once all of this run is released; retries until written."""
        if self._next_try is None and not self._is_given_back:
            return
        # The records stay until the commit: if this agent is killed before, recovery reads the exit code in them. The guard
        # drops the pipes earlier, since the next try, which may begin at the commit, keeps its own under the same id.
        records = self._places.records()
        drop(self._job.id)
        while True:
            try:
                if self._next_try is not None:
                    queue_again(self._engine, self._next_try)
                else:
                    give_back(self._engine, self._job.id, self._job.holder)
            except LedgerGoneError as exc:
                self._log(exc)
            except LedgerError as exc:
                self._log(exc)
                with pause():
                    threading.Event().wait(RETRY_SECONDS)
                continue
            break
        for record in records:
            record.unlink(missing_ok=True)

    def close(self) -> None:
        """Release descriptors, sockets and the job's live files."""
        self._close_running()
        self._marked.close()
        self._carrier.close()
        self._wake.close()
        self._places.remove_live()

    def _supervise(self) -> Iterator[EventLoop]:
        if self._job.state is JobState.STARTING and self._job.holder is None:
            self._running = self._start()
        if self._running is None and not self._job.state.is_final:
            self._adopt()
        if self._running is not None:
            yield from self._watch(self._running)

    def _start(self) -> RunningJob | None:
        """Start the job, and again after a temporary error of the ledger or the container engine.

        Returns:
            None if the job may run already: its holder is in the ledger, and the connection to the engine was lost before
            the answer. Then the caller adopts it.
        """
        while self._job.holder is None:
            try:
                self._await_place()
                return start(self._engine, self._job, self._carrier, self._take_monitor)
            except LedgerError as exc:
                self._log(exc)
            except (EngineAwayError, NotReadyError) as exc:
                self._write_reason(str(exc))
            self._pause(RETRY_SECONDS)
        return None

    def _await_place(self) -> None:
        """Wait until the jobs that were suspended or evicted for this one have left.

        Raises:
            PlaceRefusedError: One of them cannot leave.
            CancelledError: The job was stopped.
        """
        reported: tuple[str, ...] = ()
        while stays := occupants(self._engine, self._job):
            if stays != reported:
                self._engine.wake(stays)
                self._write_reason(f"waits until {', '.join(f'job {job_id}' for job_id in stays)} has made room")
                reported = stays
            self._refuse_if_stopped()
            self._pause(PLACE_PAUSE_SECONDS)

    def _refuse_if_stopped(self) -> None:
        if self._engine.ledger.entry(self._job.id).stop_grace_seconds is not None:
            raise CancelledError(f"job {self._job.id} was stopped before it was started")

    def _write_reason(self, reason: str) -> None:
        """Write into the ledger why a granted job is not started yet.

        Raises:
            CancelledError: The job was stopped.
        """
        try:
            entry = self._engine.ledger.entry(self._job.id)
            if entry.job.reason != reason:
                with self._engine.ledger.decision() as decision:
                    entry = decision.entry(self._job.id)
                    entry = replace(entry, job=replace(entry.job, reason=reason))
                    decision.put(entry)
        except LedgerError as exc:
            self._log(exc)
            return
        self._job = entry.job
        if entry.stop_grace_seconds is not None and entry.job.holder is None:
            raise CancelledError(f"job {self._job.id} was stopped before it was started")

    def _adopt(self) -> None:
        try:
            self._engine.hold_gpus()
        except PgpuError as exc:
            # The job runs already under its lease: a lock that another ledger holds must not end it.
            self._log(exc)
        self._running = self._adopted()
        if self._running is None:
            self._refuse_if_never_run()
            self._end(lambda job: mark_lost(job, time.time()))

    def _refuse_if_never_run(self) -> None:
        holder = self._job.holder
        if isinstance(holder, ProcessHolder) and not is_alive(holder) and self._carrier.shows_no_run_of(holder):
            self._refuse_if_stopped()
            raise _NeverRanError(f"job {self._job.id} had no command yet when its agent ended; it is started again")

    def _adopted(self) -> RunningJob | None:
        """Attach to the running job; while its container engine is unreachable, retry: the container may still run there."""
        while True:
            try:
                return adopt(self._engine, self._job, self._carrier)
            except EngineAwayError as exc:
                self._log(exc)
                self._pause(RETRY_SECONDS)

    def _watch(self, running: RunningJob) -> Iterator[EventLoop]:
        is_adopted = self._job.holder is not None
        with contextlib.suppress(PgpuError):  # of hundreds of jobs each would keep a copy of what the ledger has, too
            self._job = self._entry.get().job
        self._carrier.on_window = lambda columns, rows: running.resize_terminal(os.terminal_size((columns, rows)))
        life = Running(self._engine, self._loop, self._job, self._entry, running, self._signals)
        self._on_wake = life.on_wake
        metrics = begin_metrics(self._engine, self._job)
        self._suspension = life.suspension
        final = yield from life.until_ended()
        if is_adopted:
            self._refuse_if_never_run()
        self._job = life.job
        self._carrier.drain()
        measured = measure_trace(self._engine, self._job, metrics)
        samples = read_samples(self._places.time_samples)
        self._ended_run = observe_end(self._engine, life.watch.observed, measured, samples[-1] if samples else None)
        what_follows = None if life.was_interrupted else self._what_follows(final)
        if isinstance(what_follows, NextTry):
            self._next_try = what_follows  # This run ends in the history alone: the job is queued again, not final.
        else:
            self._end(final if what_follows is None else lambda job: _with_warning(final(job), what_follows))

    def _what_follows(self, final: Callable[[Job], Job]) -> NextTry | str | None:
        """Return the next try of a job that was refused memory and may be retried, or the reason why there is none."""
        run = self._ended_run
        if run is None or not (run.observed.refusals or run.observed.device_refusals):
            return None
        try:
            with self._engine.ledger.view() as view:
                entry = view.entry(self._job.id)
                if entry.stop_grace_seconds is not None:
                    return None
                entry = replace(entry, job=final(entry.job))
                is_promised = self._engine.keeps_memory_of(entry.job)
                return run.follow(view, entry.job) or run.follow_full_gpu(entry, is_promised=is_promised)
        except PgpuError as exc:
            self._log(exc)
            return None

    def _end(self, final: Callable[[Job], Job]) -> None:
        """Write the job's final state, and release its lease with it if nothing holds memory; retries until it is written."""

        def ended(decision: Decision, entry: Entry) -> Entry:
            if not entry.job.state.is_final:
                entry = replace(entry, job=final(entry.job))
                if self._ended_run is not None:
                    self._ended_run.learn(decision, entry.job)
            return entry

        while self._next_try is not None or not self._try_release(ended):
            try:
                with self._engine.ledger.decision() as decision:
                    entry = ended(decision, decision.entry(self._job.id))
                    decision.put(entry)
            except LedgerError as exc:
                self._log(exc)
                self._pause(RETRY_SECONDS)
            else:
                self._job = entry.job
                return

    def _read_job(self) -> None:
        # The lease names its enforcer since the start of the job.
        self._job = self._engine.ledger.job(self._job.id)

    def _has_lingered(self) -> bool:
        """Linger; return whether no error ended that early: neither the lease nor the end of the output may be lost."""
        try:
            self._linger()
        except LedgerGoneError:
            raise
        except Exception:  # noqa: BLE001 - the engine's loop: a bug, or a monitor that cannot be started for want of descriptors
            say_traceback()
            return False
        return True

    def _linger(self) -> None:
        """Release the lease once no process holds its memory.

        Clients get the end of the output after that, so that a command which follows finds the memory free; but at most
        `MOST_END_DELAY_SECONDS` after the end if processes that the job left behind hold the memory.
        """
        self._on_wake = self._stop_leftovers
        if self._next_try is None:  # else clients stay connected and follow the next try
            self._loop.call_later(MOST_END_DELAY_SECONDS, self._carrier.finish)
        checks = 0
        while not (self._is_released or self._try_release()):
            if checks % CHECKS_PER_HOLD_UPDATE == CHECKS_PER_HOLD_UPDATE - 1:
                self._log_errors(lambda: follow_holds(self._engine, self._suspension, self._job.id))
            self._pause(LINGER_PAUSES_SECONDS[min(checks, len(LINGER_PAUSES_SECONDS) - 1)])
            checks += 1
        self._suspension.leaving.close()
        # Before the end of the output: a container is removed, and its name free, when its caller's command returns.
        self._close_running()
        if self._next_try is None:
            self._carrier.finish()

    def _close_running(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            self._log_errors(running.close)

    def _try_release(self, ended: Callable[[Decision, Entry], Entry] | None = None) -> bool:
        """Release the lease if no process holds its memory; `ended` makes the job final in the same transaction."""
        try:
            if self._job.lease is not None and self._engine.enforcer.is_held(self._job.lease):
                return False
            if self._next_try is None:
                self._job = self._engine.release(self._job, ended)
        except PgpuError as exc:
            self._log(exc)
            self._pause(RETRY_SECONDS)
            return False
        self._is_released = True
        return True

    def _stop_leftovers(self) -> None:
        """Kill the processes that the ended job left behind, if it was asked to stop meanwhile."""
        try:
            is_asked = self._engine.ledger.entry(self._job.id).stop_grace_seconds is not None
        except LedgerError as exc:
            self._log(exc)
            return
        if is_asked and self._running is None:
            self._log_errors(self._marked.kill)
        elif is_asked:
            self._kill_running()

    def _kill_running(self) -> None:
        if self._running is not None:
            self._log_errors(self._running.kill)

    def _log_errors(self, act: Callable[[], None]) -> None:
        """Call, and log an error: the caller continues without the result."""
        try:
            act()
        except PgpuError as exc:
            self._log(exc)

    def _read_wake(self) -> None:
        """Read all queued datagrams: signals for the job, window sizes, and empty ones that only wake this thread."""
        with contextlib.suppress(BlockingIOError):
            while True:
                words = self._wake.recv(_MOST_WORD_BYTES).split()
                if words[:1] == [SIGNAL_PREFIX]:
                    self._signals.append(int(words[1]))
                elif words[:1] == [WINDOW_PREFIX]:
                    self._carrier.set_window(int(words[1]), int(words[2]))
        self._on_wake()

    def _pause(self, seconds: float) -> None:
        """Run the event loop for a time."""
        is_over: list[bool] = []
        self._loop.call_later(seconds, lambda: is_over.append(True))
        self._loop.run_until(lambda: bool(is_over))


def _with_warning(job: Job, warning: str) -> Job:
    return replace(job, warning="; ".join(filter(None, (job.warning, warning))))
