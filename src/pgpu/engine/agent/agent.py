"""The main loop of an agent: admits jobs when it is called, when a process ended, and when memory may have become free.

A process that changes anything about the queue has written it into the ledger before it calls. So an agent that was stopped
for a moment, or replaced, finds the same state.
"""

import ctypes
import fcntl
import gc
import math
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

from pgpu.engine.admission.rounds import RoundOutcome
from pgpu.engine.agent.agents import GO, START, is_locked_file, write_identity
from pgpu.engine.agent.attendants import Attendants, AttendContainer
from pgpu.engine.agent.containers import container_home, find_unattended, is_left
from pgpu.engine.agent.deadlines import Deadlines, now_seconds
from pgpu.engine.agent.door import Door
from pgpu.engine.agent.heartbeat import beat
from pgpu.engine.agent.monitor_offers import MonitorOffers
from pgpu.engine.engine import Engine
from pgpu.engine.event_loop import READABLE, EventLoop, ProcessWatcher, Timer
from pgpu.engine.history.gpu_recorder import GpuRecorder
from pgpu.engine.leases import mps_sharing  # noqa: F401 - loaded now: the first release may come after an upgrade in place
from pgpu.engine.leases.recovery import recover
from pgpu.engine.settings import agent_paths
from pgpu.engine.unix_sockets import bind
from pgpu.engine.watch.watchdog import Watchdog
from pgpu.errors import LedgerGoneError, NodeError, PgpuError
from pgpu.host.atomic_file import write_atomically
from pgpu.host.file_lock import try_flock
from pgpu.host.process_identity import myself
from pgpu.host.stderr_log import Complaints, log_to_stderr, log_to_stderr_on_demand, say
from pgpu.ledger import Entry
from pgpu.model import Gpu, ProcessHolder
from pgpu.runtimes.job_monitor import become_guard, reap_ended_monitors, remove_old_reaped
from pgpu.structs import encode_json

PAUSES_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The GPUs are read again after these, the last repeated: outsiders free memory without a message."""

MOST_PAUSE_SECONDS = 0.1
"""Between two rounds that messages ask for; less after a short round."""

ROUNDS_SHARE = 0.1
"""Part of the time that rounds take at most while messages come in a row: one round serves all messages of a pause."""

ROUND_SECONDS = 10.0
"""Longest time between two rounds: places in the order change with time, and a message may have been lost."""

HELD_BACK_SECONDS = 1.0
"""The same while a job that fits is held back: new samples of GPU time, one a second, may allow its start."""

REASONS_SECONDS = 0.2
"""Shortest time between two reports of reasons to waiting clients."""

RETRY_SECONDS = 1.0
"""Pause after an error of the ledger or the machine."""

LINGER_SECONDS = 10.0
"""Time that an agent runs after its last job: a job that is submitted meanwhile starts in a tenth of the time."""

LOGGING_SECONDS = 0.5
"""Time until an agent imports `logging`, unless it has a message before: the jobs for which it was started go first."""

_OBJECTS_BETWEEN_COLLECTIONS = 10_000
"""A job makes some thousands of objects, few of them in cycles; Python's 700 would collect several times for each."""

_MOST_WORD_BYTES = 64

_LIBC = ctypes.CDLL(None)


def run_agent(
    engine: Engine,
    engine_of: Callable[[str], Engine],
    attend_container: AttendContainer,
    lock: int,
    again: Sequence[str],
) -> None:
    """Run the agent of one queue until no job of it waits or runs.

    Args:
        engine: Of the queue's GPUs.
        engine_of: Returns the engine with the settings of a job's submitter, by the job's id; called by many threads.
        attend_container: Does what a container of `docker run --runtime=pgpu` needs from its creation to its end: given an
            engine, the id of its slice, its turn and a maker of event loops, submits its request in that turn, waits for the
            grant and supervises its job; called by many threads.
        lock: Descriptor that holds the agent's lock; unlocked at the end.
        again: argv of another agent, for a job that came at the last moment or a guard that was killed; the descriptors of
            the lock and of a socket to the guard are appended.
    """
    log_to_stderr_on_demand()
    # The command that started this process may ignore or block signals; a job would inherit that.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    engine.ledger.refuse_to_make()
    engine.settings.spool.mkdir(mode=0o700, exist_ok=True)
    remove_old_reaped(engine.settings.spool)
    with closing(_Agent(engine, engine_of, attend_container, lock)) as agent:
        gc.freeze()  # loaded modules stay for the process's life: garbage collection need not visit them
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
        agent.run()
        with suppress(PgpuError):
            engine.ledger.shrink()
        if agent.has_lost_guard:
            become_guard(lock, engine.settings.spool, again)
    # The guard has a descriptor of the same lock: it is free only once it is unlocked.
    fcntl.flock(lock, fcntl.LOCK_UN)
    if not agent.is_dismissed:
        _start_next_if_needed(engine, lock, again)


def _start_next_if_needed(engine: Engine, lock: int, again: Sequence[str]) -> None:
    """Read the queue once more after the lock was released: a process may have found the lock held after the last reading."""
    model = engine.settings.gpu_model
    with suppress(PgpuError):
        with engine.ledger.view() as view:
            is_needed = view.first_waiting(model) is not None or any(map(is_left, engine.queue_of(view.holding())))
        if (is_needed or find_unattended(engine, ())) and try_flock(lock):
            become_guard(lock, engine.settings.spool, again)


class _Agent:
    """What one agent holds in memory; all of it can be made again from the ledger."""

    def __init__(
        self,
        engine: Engine,
        engine_of: Callable[[str], Engine],
        attend_container: AttendContainer,
        lock: int,
    ) -> None:
        self.is_dismissed = False
        """Whether no other agent is to follow: another version takes its place, or its directory is gone."""

        self.has_lost_guard = False
        """Whether its guard was killed: this process must become the next one, and start another agent."""

        self._guard_pid = os.getppid()
        self._engine = engine
        self._lock = lock
        self._places = agent_paths(engine.settings, engine.settings.gpu_model)
        write_identity(lock, myself())
        self._loop = EventLoop()
        self._wake = bind(socket.SOCK_DGRAM, self._places.wake_socket)
        door = bind(socket.SOCK_STREAM, self._places.door_socket)
        self._offers = MonitorOffers(self._loop)
        self._door = Door(
            self._loop,
            door,
            self._still_waits,
            self._reason,
            self._take_container,
            self._offers.add,
            self._be_needed,
        )
        self._watcher = ProcessWatcher(self._loop, self._recover_and_admit)
        self._watchdog = Watchdog(engine)
        self._recorder = GpuRecorder(engine)
        self._holding = engine.ledger.cached(self._read_holding)
        self._deadlines = Deadlines()
        self._wakes_at_seconds = math.inf
        """When a begin or a new period of a quota may let a job start, in the time of `now_seconds`."""

        self._attendants = Attendants(
            self._loop,
            engine,
            engine_of,
            attend_container,
            self._offers.take,
            lambda: self._log_errors(self._watch_holders),
        )
        self._outcome = self._reported = RoundOutcome()
        self._reported_at_seconds = 0.0
        self._published: Sequence[Gpu] | None = None
        with suppress(OSError):
            self._places.gpus.unlink(missing_ok=True)  # of an agent that was killed
        self._timer: Timer | None = None
        self._admit_timer: Timer | None = None
        self._look_timer: Timer | None = None
        self._containers_at_seconds = now_seconds()
        self._is_resting = False
        """Whether nothing uses a GPU, and the next `_look_around` is that of `ROUND_SECONDS` later."""

        self._free_at_seconds = 0.0
        self._checks = 0
        self._round_at_seconds = 0.0
        self._needed_at_seconds = now_seconds()
        self._is_over = False
        self._complaints = Complaints()
        self._loop.watch(self._wake.fileno(), READABLE, lambda _: self._read_messages())

    def run(self) -> None:
        """Run until no job waits or runs and `LINGER_SECONDS` have passed, or until another agent must follow."""
        _allow_many_descriptors()
        beat(self._loop, self._lock, lambda: not self._outcome.polled_ids and not self._attendants.ids)
        self._recover_and_admit()
        self._log_errors(self._attend_containers)
        self._look_timer = self._loop.call_on_beat(self._look_around, PAUSES_SECONDS[-1])
        # `logging` is imported beside the first jobs' start, and not with the first message, which may report that no descriptor
        # is left.
        self._loop.call_later(LOGGING_SECONDS, log_to_stderr)
        self._loop.run_until(lambda: self._is_over)

    def close(self) -> None:
        """Remove the sockets and the list of GPUs, so that no process reaches this agent, and close everything."""
        for path in (self._places.wake_socket, self._places.door_socket, self._places.gpus):
            if is_locked_file(self._places.lock, self._lock):
                path.unlink(missing_ok=True)
        self._wake.close()
        self._door.close()
        self._offers.close()
        self._watcher.watch(set())
        self._watchdog.close()
        self._recorder.flush()
        self._attendants.close()
        self._loop.close()

    def _read_messages(self) -> None:
        """Read all queued messages; any number of `LOOK` messages cause one round."""
        is_round_due = False
        with suppress(BlockingIOError):
            while True:
                words = self._wake.recv(_MOST_WORD_BYTES)
                self._be_needed()
                if words == GO:
                    self.is_dismissed = self._is_over = True
                elif words.startswith(START):
                    self._attendants.start(words.removeprefix(START).decode().strip())
                else:
                    is_round_due = True
        if is_round_due:
            self._checks = 0
            self._admit_soon()

    def _admit_soon(self) -> None:
        """Run a round now, or a moment later right after another one; see `ROUNDS_SHARE`."""
        pause_seconds = self._free_at_seconds - now_seconds()
        if pause_seconds <= 0:
            self._log_errors(self._admit)
        elif self._admit_timer is None or self._admit_timer.call is None:
            self._admit_timer = self._loop.call_later(pause_seconds, lambda: self._log_errors(self._admit))

    def _recover_and_admit(self) -> None:
        self._checks = 0
        self._log_errors(lambda: recover(self._engine))
        self._log_errors(self._admit)

    def _admit(self) -> None:
        """Run one round of admission: start granted jobs, and report reasons to waiting clients."""
        if self._admit_timer is not None:
            self._admit_timer.cancel()
        began_at_seconds, due = now_seconds(), self._deadlines.due()
        self._engine.admissions.plan()
        self._outcome = self._engine.admissions.step(due, myself())
        self._round_at_seconds = now_seconds()
        for job_id in self._outcome.granted:
            self._attendants.start(job_id)
            self._be_needed()
        self._publish_gpus()
        self._deadlines.follow(self._outcome.deadlines_seconds)
        # By wall time, which may be set: translated anew in each round.
        self._wakes_at_seconds = now_seconds() + self._outcome.situation.wakes_at_seconds - time.time()
        self._door.close_all_but(self._outcome.waiting_ids)
        self._report_reasons()
        self._watch_holders()
        self._sleep()
        ended_at_seconds = now_seconds()
        pause_seconds = (ended_at_seconds - began_at_seconds) * (1 / ROUNDS_SHARE - 1)
        self._free_at_seconds = ended_at_seconds + min(pause_seconds, MOST_PAUSE_SECONDS)

    def _publish_gpus(self) -> None:
        """Write which GPUs there are, for commands that leave their jobs to this agent; see `EngineContext.listed_gpus`."""
        gpus: Sequence[Gpu] = ()  # where the driver does not answer: a command then reports its error
        with suppress(NodeError):
            gpus = self._engine.recent_gpus()
        if gpus != self._published:
            with suppress(OSError):  # commands then ask the driver
                write_atomically(self._places.gpus, encode_json(gpus), 0o600)
                self._published = gpus

    def _check(self) -> None:
        """Check at low cost whether a round is due, or whether this agent must end."""
        self._checks += 1
        self._engine.ledger.refuse_if_gone()
        reap_ended_monitors()
        if os.getppid() != self._guard_pid:
            self._is_over = self.has_lost_guard = True
            return
        if self._outcome.waiting_ids or self._attendants.ids:
            self._needed_at_seconds = now_seconds()
        if not is_locked_file(self._places.lock, self._lock):
            self._is_over = self.is_dismissed = True  # Its directory was removed: no process can reach it.
        elif not self._outcome.waiting_ids:
            self._watch_holders()
            is_needed = self._door.is_kept or now_seconds() - self._needed_at_seconds <= LINGER_SECONDS
            self._is_over = not is_needed
        elif now_seconds() - self._round_at_seconds > ROUND_SECONDS:
            self._recover_and_admit()
        elif self._admit_timer is not None and self._admit_timer.call is not None:
            return  # a round is due anyway, which reads all of it
        elif (
            self._deadlines.due()
            or now_seconds() >= self._wakes_at_seconds
            or (self._outcome.holds_back and now_seconds() - self._round_at_seconds >= HELD_BACK_SECONDS)
            or (self._outcome.polled_ids and self._engine.capacities() != self._outcome.capacities)
            or self._outcome.may_suspend_more(self._engine.rounds.host_memory)
        ):
            self._admit()
        else:
            self._report_reasons()
            self._watch_holders()
            self._sleep()

    def _report_reasons(self) -> None:
        """Report reasons, but not after each of many rounds in a row: to find them, the order must be computed."""
        if self._reported is not self._outcome and now_seconds() - self._reported_at_seconds > REASONS_SECONDS:
            self._reported, self._reported_at_seconds = self._outcome, now_seconds()
            self._door.report()

    def _watch_holders(self) -> None:
        """Start threads for granted jobs, and watch processes that supervise others: after their end this agent does it."""
        others: list[Entry] = []
        if other_ids := [job_id for job_id in self._holding.get() if job_id not in self._attendants.ids]:
            others = [entry for entry in self._engine.ledger.entries_of(other_ids) if entry.is_lease_held]
        for entry in others:
            if is_left(entry):
                self._needed_at_seconds = now_seconds()
                self._attendants.start(entry.job.id)
        holders = {holder for entry in others for holder in (entry.supervisor, entry.job.holder)}
        self._watcher.watch({each for each in holders if isinstance(each, ProcessHolder)} - {myself()})

    def _read_holding(self) -> list[str]:
        with self._engine.ledger.view() as view:
            return view.holding_ids(self._engine.settings.gpu_model)

    def _look_around(self) -> None:
        """Do what is due once a second while a GPU is used: one wake-up for all of it, and one in ten seconds else."""
        # The recorder first: the watchdog needs no snapshot of its own then.
        for tick in (self._record, self._watchdog.tick):
            # Not by `_log_errors`: an error each second would put off the next check each second.
            try:
                tick()
            except PgpuError as exc:
                self._complaints.say(exc)
        self._attendants.look()
        if now_seconds() - self._containers_at_seconds > ROUND_SECONDS - PAUSES_SECONDS[-1]:
            self._containers_at_seconds = now_seconds()
            self._log_errors(self._attend_containers)
            self._log_errors(self._engine.ledger.shrink)
            _LIBC.malloc_trim(0)  # else what many jobs took that began together stays this process's
        if not self._outcome.polled_ids:
            self._log_errors(self._check)
        is_used = self._outcome.polled_ids or self._attendants.ids or self._watchdog.has_found
        is_kept = self._door.is_kept or self._outcome.waiting_ids
        self._is_resting = bool(is_kept) and not (is_used or self._holding.get())
        pause_seconds = ROUND_SECONDS if self._is_resting else PAUSES_SECONDS[-1]
        self._look_timer = self._loop.call_on_beat(self._look_around, pause_seconds)

    def _record(self) -> None:
        self._recorder.tick(is_used=bool(self._holding.get()))

    def _be_needed(self) -> None:
        """Note that a process needs this agent now: it stays some seconds, and looks around each of them."""
        self._needed_at_seconds = now_seconds()
        if self._is_resting and self._look_timer is not None:
            self._is_resting = False
            self._look_timer.cancel()
            self._look_timer = self._loop.call_on_beat(self._look_around, PAUSES_SECONDS[-1])

    def _attend_containers(self) -> None:
        """Attend containers that another agent, or a process of the release before this one, attended before it ended."""
        for job_id in find_unattended(self._engine, self._attendants.ids):
            self._attendants.start(job_id)

    def _take_container(self, job_id: str) -> bool:
        self._be_needed()
        if container_home(self._engine, job_id) is not None:
            self._attendants.start(job_id)
        return job_id in self._attendants.ids

    def _still_waits(self, job_id: str) -> bool:
        with suppress(PgpuError):
            return self._engine.ledger.waits(job_id)
        return True

    def _reason(self, job_id: str) -> str | None:
        return self._outcome.reason(job_id)

    def _log_errors(self, act: Callable[[], object]) -> None:
        """Call; log an error and retry later: a temporary error (full disk, no more processes) must end no job."""
        try:
            act()
        except LedgerGoneError as exc:
            self._complaints.say(f"{exc}: its agent ends")
            self.is_dismissed = True
            # The threads end their jobs first: without a ledger, no process could stop those.
            self._is_over = not self._attendants.ids
            self._sleep(RETRY_SECONDS)
        except PgpuError as exc:
            say(str(exc))
            self._sleep(RETRY_SECONDS)

    def _sleep(self, seconds: float | None = None) -> None:
        """Check after a time; None: when memory may be free for a waiting job, or one's deadline or begin is due."""
        if self._timer is not None:
            self._timer.cancel()
        if seconds is None:
            begin_seconds = max(0.0, self._wakes_at_seconds - now_seconds())
            seconds = min(self._deadlines.next_seconds(), begin_seconds)
            if self._outcome.polled_ids:
                seconds = min(seconds, PAUSES_SECONDS[min(self._checks, len(PAUSES_SECONDS) - 1)])
            if math.isinf(seconds):
                return  # `_look_around` checks
        self._timer = self._loop.call_later(seconds, lambda: self._log_errors(self._check))


def _allow_many_descriptors() -> None:
    """Each client that waits for a job has a connection here, each job that runs a dozen descriptors."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
