"""A job between its start and its end: it is measured each second, stopped on request, and gets its signals."""

import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

from pgpu.engine.admission.idle_leases import RECLAIMED
from pgpu.engine.engine import Engine
from pgpu.engine.event_loop import READABLE, EventLoop, Timer
from pgpu.engine.history.retry_policy import ENDING_SIGNALS
from pgpu.engine.leases.departure import Departure
from pgpu.engine.leases.lease_growth import Growth
from pgpu.engine.leases.lease_resize import Autoshrink, follow_compute
from pgpu.engine.leases.recovery import mark_lost
from pgpu.engine.supervisor.aside import Aside
from pgpu.engine.supervisor.clients import Clients
from pgpu.engine.supervisor.idleness import Idleness
from pgpu.engine.supervisor.suspension import Suspension
from pgpu.engine.supervisor.watch import Watch
from pgpu.engine.watch.gpu_time import take_sample
from pgpu.engine.watch.mps_verifier import MpsVerifier
from pgpu.engine.watch.turn_arbiter import Arbiter
from pgpu.errors import PgpuError
from pgpu.host.stderr_log import Complaints
from pgpu.ledger import Entry, monotonic_now
from pgpu.ledger.change_watch import CachedRead
from pgpu.model import Job, OnTimeLimit, SharingMode
from pgpu.runtimes import RunningJob
from pgpu.structs import replace
from pgpu.units import format_duration

_TICKS_BETWEEN_SHARES = 60
"""After so many ticks, the share is compared with the jobs beside it, as after the message that each of those sends."""

_KILL_AGAIN_SECONDS = 5.0

_LEAVING_PAUSE_SECONDS = 0.01
"""Polling interval while a job leaves its GPU or comes back: another job, or a call, waits for either."""


class Running:
    """The supervision of one running job; called in a thread of the job, or by `beats` while none is at work."""

    def __init__(  # noqa: PLR0917 - the parts of one job
        self,
        engine: Engine,
        loop: EventLoop,
        job: Job,
        entry: CachedRead[Entry],
        running: RunningJob,
        signals: list[int],
    ) -> None:
        """Watch nothing yet.

        Args:
            engine: With the settings of the job's submitter.
            loop: Of the job.
            job: As it was started.
            entry: Reads its entry in the ledger.
            running: The job in its runtime.
            signals: Signal numbers that are to be sent to the job, oldest first; emptied here.
        """
        self._engine = engine
        self._loop = loop
        self.job = job
        """As it was started; after its end, as it is in the ledger."""

        self.was_interrupted = False
        """Whether it got a signal that asks it to end; it may have ended with any exit code then."""

        self._running = running
        self._entry = entry
        self._signals = signals
        self.watch = Watch(engine)
        self._growth = Growth(engine, job)
        self._shrinking = Autoshrink(engine, grows=self._growth.channel is not None)
        self._arbiter = Arbiter(engine, loop, job)
        self._verifier = MpsVerifier(engine, loop, job)
        self._leaving = Departure(engine, job.id, running.owns)
        aside = Aside(engine, self._leaving, self._signal, self._suspend_soon) if job.spec.parks else None
        self.suspension = Suspension(engine, self._leaving, aside)
        """Continues after the job's end if processes of it are left."""

        self._suspend_timer: Timer | None = None
        self._complaints = Complaints()
        self._reported_trouble: str | None = None
        self._idleness = Idleness(engine, engine.settings.idle_timeout_seconds)
        self._idle_report: str | None = None
        self._clients = None if engine.mps is None else Clients(engine.mps.daemons, engine.gpus)
        self._mps_report: str | None = None
        self._limit_timer: Timer | None = None
        """Set while the job runs on and has not reached its time limit."""

        self._ticks = 0
        self._was_calm = False
        """What `_is_calm` found for the next tick."""

        self._tick_timer: Timer | None = None
        self._kill_timer: Timer | None = None
        self._wake_timer: Timer | None = None
        self._has_ended = False
        self._is_stopping = False

    def until_ended(self) -> Generator[EventLoop, None, Callable[[Job], Job]]:
        """Wait for the job's end, and yield as `EventLoop.calm_until` does.

        Returns:
            A function that takes the job as it is in the ledger and returns it with its end.
        """
        descriptor = self._running.fileno()
        self._watch_end(descriptor)
        if self._signals:
            self._loop.call_later(0.0, self.on_wake)
        if self._growth.channel is not None:
            self._loop.call_on_write(self._growth.channel.usage, self._answer_written)
        self._loop.call_later(0.0, self._answer_wishes)
        self._loop.call_later(0.0, self._take_turns)
        self._loop.call_later(0.0, self._watch_limit)
        self._loop.call_later(0.0, self._check_clients_now)
        self._tick_timer = self._loop.call_on_beat(self._tick, is_light=self._is_calm)
        yield from self._run_until_ended()
        self._loop.forget(descriptor)
        self._arbiter.close()
        self._leaving.close()
        self._verifier.close()
        for timer in (self._tick_timer, self._kill_timer, self._wake_timer, self._suspend_timer, self._limit_timer):
            if timer is not None:
                timer.cancel()
        return self._final(self._exit_code(), time.time())

    def _run_until_ended(self) -> Iterator[EventLoop]:
        while not self._has_ended:
            try:
                yield from self._loop.calm_until(lambda: self._has_ended)
            except PgpuError:
                raise  # the ledger is gone, or the job's streams cannot be carried any more
            except Exception as exc:  # noqa: BLE001 - a bug in a policy (turns, trials, MPS) must not end the job; ticks repeat it
                self._log(exc)

    def on_wake(self) -> None:
        """Send the queued signals, and apply the ledger's entry: compute share, suspension, stop."""
        while self._signals:
            number = self._signals.pop(0)
            self.was_interrupted |= number in ENDING_SIGNALS
            self._signal(number)
        with self._errors_logged():
            with self._engine.ledger.view() as view:
                entry, paced = view.entry(self.job.id), view.paced()
            with self._errors_logged():
                self._follow_compute(entry.job, paced)
            self._follow_suspension(entry.job)
            if entry.stop_grace_seconds is not None:
                self._stop(entry.stop_grace_seconds)
        self._answer_wishes()  # a process that is to end gets no memory any more, so that it can react

    def _follow_compute(self, job: Job, paced: Sequence[Entry]) -> None:
        follow_compute(self._engine.enforcer, job, paced, by_user=self._engine.settings.divides_users)

    def _wake_soon(self) -> None:
        """Have a thread follow the ledger: a tick may be called by `beats`, and a stop may block on a container engine."""
        if self._wake_timer is not None:
            self._wake_timer.cancel()
        self._wake_timer = self._loop.call_later(0.0, self.on_wake)

    def _watch_end(self, descriptor: int) -> None:
        self._loop.watch(descriptor, READABLE, lambda _: self._check_end(descriptor))

    def _check_end(self, descriptor: int) -> None:
        try:
            self._has_ended = not self._running.is_alive()
        except Exception as exc:  # noqa: BLE001 - the descriptor stays readable, and the loop would call this again at once
            # While a container engine is unreachable, its containers may still run.
            self._log(exc)
            self._loop.forget(descriptor)
            self._loop.call_on_beat(lambda: self._watch_end(descriptor))

    def _exit_code(self) -> int | None:
        with self._errors_logged():
            return self._running.exit_code()
        return None

    def _signal(self, number: int) -> bool:
        with self._errors_logged():
            self._running.signal(number)
            return True
        return False

    def _final(self, exit_code: int | None, now_seconds: float) -> Callable[[Job], Job]:
        with self._errors_logged():
            entry = self._engine.ledger.entry(self.job.id)
            self.job = entry.job
            self._is_stopping |= entry.stop_grace_seconds is not None  # perhaps left to a wake-up after the end
            self.watch.look_at_meters(self.job)
        peak_bytes = self.watch.observed.peak_bytes if self.watch.observed.slice_bytes else None
        if self._is_stopping:
            self._kill()
        elif exit_code and self._clients is not None and self._mps_report is None:
            # A program may have failed because its MPS daemon or server died since the last tick.
            with self._errors_logged():
                self._mps_report = self._clients.loss(self._engine.ledger.job(self.job.id))

        def final(job: Job) -> Job:
            stopped = None if self.suspension.aside is None else self.suspension.aside.stop_reason
            limited = _limit_report(job) if job.hit_time_limit else None
            report = self.watch.violation or self._mps_report or self._idle_report or stopped or limited
            reclaimed = None if job.reclaimed_at_seconds is None else RECLAIMED
            job = replace(job, peak_bytes=peak_bytes, warning=report or reclaimed, reason=None)
            if exit_code is None:
                return mark_lost(job, now_seconds)
            return job.ended(exit_code, now_seconds)

        return final

    def _stop(self, grace_seconds: float) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            self._signal(signal.SIGTERM)
            self._kill_timer = self._loop.call_later(grace_seconds, self._kill)

    def _kill(self) -> None:
        if self._clients is not None:
            with self._errors_logged():
                self._clients.terminate(self._engine.ledger.job(self.job.id), self._running)
        try:
            self._running.kill()
        except PgpuError as exc:
            self._complaints.say(exc)
            self._kill_timer = self._loop.call_later(_KILL_AGAIN_SECONDS, self._kill)

    def _tick(self) -> None:
        self._tick_timer = self._loop.call_on_beat(self._tick, is_light=self._is_calm)
        self._ticks += 1
        had_violation = self.watch.violation
        # What has become due since `_is_calm` is left to the thread, which a write calls, or to the next tick.
        is_calm, self._was_calm = self._was_calm, False
        if not is_calm:
            self._answer_wishes()
        with self._errors_logged():
            entry = self._entry.get()
            job = entry.job
            with self._errors_logged():  # A driver that fails for a moment must not end a job.
                self._check_memory(job, may_shrink=not is_calm)
            for check in (self._sample_time, self._check_idleness, self._check_clients):
                with self._errors_logged():
                    check(job)
            if self._limit_timer is None:  # it was suspended until now, or the ledger could not be used
                self._watch_limit()
            if self._ticks % _TICKS_BETWEEN_SHARES == 0:
                with self._errors_logged():
                    self._follow_compute(job, self._engine.paced.get())
            if entry.stop_grace_seconds is None or self._is_stopping:
                self._follow_suspension(job)
            else:
                self._wake_soon()  # a message was lost, or comes later
        if self.watch.violation is not None and had_violation is None:
            self._report(self.watch.violation, is_end=self._engine.settings.on_violation == "stop")
        self._take_turns()

    def _is_calm(self) -> bool:
        """Whether the next tick only measures: it resizes, moves and stops nothing, takes no turns and asks no MPS daemon."""
        self._was_calm = False
        try:
            entry, is_growing = self._entry.get(), self._growth.is_wished()
        except PgpuError:
            return False  # logged by the tick
        job = entry.job
        is_moved = job.spec.parks or job.is_aside or job.suspended_by is not None or self._leaving.is_under_way
        is_resized = is_growing or entry.waits_to_grow or self._may_shrink(job)
        is_shared = job.lease is not None and job.lease.sharing is SharingMode.MPS
        is_at_rest = not (is_moved or is_resized or is_shared or job.request.oversubscribes)
        self._was_calm = entry.stop_grace_seconds is None and is_at_rest
        return self._was_calm

    def _may_shrink(self, job: Job) -> bool:
        return self._shrinking.is_due(job, self.watch.observed, time.monotonic())

    def _answer_written(self) -> None:
        with self._errors_logged():
            if self._growth.may_look():
                self._answer_wishes()

    def _answer_wishes(self) -> None:
        with self._errors_logged():
            if self._growth.channel is not None:
                entry = self._entry.get()
                is_away = entry.waits_to_grow and (
                    entry.job.parked_at_seconds is not None or self._leaving.is_under_way
                )
                is_stopping = self._is_stopping or self.was_interrupted
                self._growth.look(entry, is_away=is_away, is_stopping=is_stopping)

    @contextmanager
    def _errors_logged(self) -> Iterator[None]:
        """Log an error or a bug of the block: the job continues, and the next tick repeats what failed."""
        try:
            yield
        except Exception as exc:  # noqa: BLE001 - a bug in one policy must neither end the job nor skip the others
            self._log(exc)

    def _log(self, exc: Exception) -> None:
        if isinstance(exc, PgpuError):
            self._complaints.say(exc)
        else:
            self._complaints.say_traceback(exc)

    def _suspend(self) -> None:
        self._suspend_timer = None
        with self._errors_logged():
            self._follow_suspension(self._engine.ledger.job(self.job.id))

    def _follow_suspension(self, job: Job) -> None:
        with self._errors_logged():
            holding: list[Entry] = []
            if job.suspended_by is not None:
                with self._engine.ledger.view() as view:
                    holding = view.holding()
            self.suspension.follow(job, holding)
        trouble = self._leaving.trouble
        if trouble is not None and trouble != self._reported_trouble:
            self._reported_trouble = trouble
            self._report(trouble, is_end=False)

    def _suspend_soon(self) -> None:
        """Schedule the next step of a job that leaves its GPU or comes back."""
        if self._suspend_timer is None:
            self._suspend_timer = self._loop.call_later(_LEAVING_PAUSE_SECONDS, self._suspend)

    def _check_clients_now(self) -> None:
        with self._errors_logged():
            self._check_clients(self.job)

    def _take_turns(self) -> None:
        with self._errors_logged():
            self._arbiter.tick()
            self._verifier.tick()

    def _check_memory(self, job: Job, *, may_shrink: bool) -> None:
        if self._leaving.is_under_way or job.is_aside:
            # Moved memory is in the meter and not in the driver's report; `Aside` checks that the job stays off its GPU.
            return
        may_shrink = may_shrink and self._may_shrink(job)
        self.watch.look(job, self._running)
        self._shrinking.follow(job, self.watch.observed, time.monotonic())
        if may_shrink and self._may_shrink(job):
            self._shrinking.shrink(job, self.watch.used_bytes)

    def _sample_time(self, job: Job) -> None:
        if job.lease is not None:
            path = self._engine.places(self.job.id).time_samples
            take_sample(self._engine.enforcer, job.lease, path, time.monotonic_ns())

    def _check_idleness(self, job: Job) -> None:
        report = None if job.suspended_by is not None or job.is_aside else self._idleness.look(job, self._running)
        if report is not None and self._idle_report is None:
            self._idle_report = report
            self._report(report, is_end=self._engine.settings.on_idle == "stop")

    def _check_clients(self, job: Job) -> None:
        if self._clients is None or self._mps_report is not None:
            return
        self._mps_report = self._clients.look(job, self._running, time.monotonic())
        if self._mps_report is not None:
            self._report(self._mps_report, is_end=True)

    def _watch_limit(self) -> None:
        """Set a timer for the time limit of a job that runs on; at its time, mark the job or stop it."""
        self._limit_timer = None
        limit_seconds = self.job.request.time_limit_seconds
        if limit_seconds is None:
            return
        with self._errors_logged():
            entry = self._entry.get()
            if entry.job.hit_time_limit or entry.runs_since is None or entry.stop_grace_seconds is not None:
                return
            left_seconds = limit_seconds - entry.run_seconds(monotonic_now())
            if left_seconds > 0:
                self._limit_timer = self._loop.call_later(left_seconds, self._watch_limit)
                return
            if not self._running.is_alive():
                return  # it ended by itself, perhaps while no agent lived: its own exit code stays
            is_end = self.job.request.on_time_limit is OnTimeLimit.STOP
            self._report(_limit_report(self.job), is_end=is_end, hit_time_limit=True)

    def _report(self, warning: str, *, is_end: bool, hit_time_limit: bool = False) -> None:
        with self._errors_logged(), self._engine.ledger.decision() as decision:
            entry = decision.entry(self.job.id)
            grace_seconds = entry.stop_grace_seconds
            if is_end and grace_seconds is None:
                grace_seconds = self._engine.settings.stop_grace_seconds
            job = replace(entry.job, warning=warning, hit_time_limit=entry.job.hit_time_limit or hit_time_limit)
            decision.put(replace(entry, job=job, stop_grace_seconds=grace_seconds))
        self._wake_soon()


def _limit_report(job: Job) -> str:
    return f"it has run for its time limit of {format_duration(job.request.time_limit_seconds or 0.0)}"
