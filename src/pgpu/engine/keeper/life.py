"""The life of one keeper: it looks when it is told to, when somebody died, and when memory may have become free.

Whoever changes anything that concerns the queue has written it before and says only: look. So a keeper that was away for a
moment, or is another one now, does the same.
"""

import os
import resource
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress

from pgpu.engine.admission.rounds import RoundOutcome
from pgpu.engine.engine import Engine
from pgpu.engine.event_loop import READABLE, EventLoop, ProcessWatcher, Timer
from pgpu.engine.keeper.calling import GO, START, begin_anew, is_locked_file, try_lock, write_identity
from pgpu.engine.keeper.deadlines import Deadlines, now_seconds
from pgpu.engine.keeper.door import Door
from pgpu.engine.keeper.zygote import Zygote
from pgpu.engine.leases.recovery import recover
from pgpu.engine.settings import keeper_paths
from pgpu.engine.unix_sockets import bind
from pgpu.engine.watch.watchdog import Watchdog
from pgpu.errors import LedgerGoneError, PgpuError
from pgpu.host.process_identity import myself
from pgpu.host.stderr_log import say
from pgpu.ledger import Entry
from pgpu.model import ProcessHolder

PAUSES_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""It looks at the GPUs again after these, the last repeated: outsiders free memory without telling anybody."""

ROUND_SECONDS = 10.0
"""At least so often everything is looked at: places in the order change with time, and a word may have been lost."""

WAVES_SECONDS = 1.0
"""The same while a job waits for its batch's next wave: what its GPU's jobs measure each second may let it start."""

REASONS_SECONDS = 0.2
"""Those who wait are told why at most so often."""

RETRY_SECONDS = 1.0
"""Before a ledger or machine that refused is tried again."""

LINGER_SECONDS = 10.0
"""How long it stays after the last job that waited: a job asked for meanwhile starts in the tenth of the time."""

_MOST_WORD_BYTES = 64


def keep(make_engine: Callable[[], Engine], zygote: Zygote, lock: int, again: Sequence[str]) -> None:
    """Keep the queue of one engine until nothing waits.

    Args:
        make_engine: Makes the engine whose GPUs are waited for.
        zygote: Forks supervisors; closed at the end, however it comes: it takes the place only of a keeper that was killed.
        lock: Descriptor that holds the keeper's lock; closed at the end.
        again: argv that becomes another keeper, where this one must begin anew; the lock's descriptor is appended.
    """
    with closing(zygote):
        engine = make_engine()
        engine.ledger.refuse_to_make()
        with closing(_Keeper(engine, zygote, lock)) as keeper:
            keeper.run()
    if keeper.is_lamed:
        begin_anew(again, lock)
    os.close(lock)
    if not keeper.is_dismissed:
        _stay_for_latecomers(engine, again)


def _stay_for_latecomers(engine: Engine, again: Sequence[str]) -> None:
    """Somebody may have seen the lock held after the last look: now that it is free, look once more."""
    model = engine.settings.gpu_model
    with suppress(PgpuError):
        if engine.ledger.first_waiting(model) is not None:
            lock = try_lock(engine.settings, model)
            if lock is not None:
                begin_anew(again, lock)


class _Keeper:
    """What one keeper knows; nothing of it outlives it."""

    def __init__(self, engine: Engine, zygote: Zygote, lock: int) -> None:
        self.is_lamed = False
        """Whether its zygote died: another keeper must take its place."""
        self.is_dismissed = False
        """Whether nobody is to look after it: another version takes its place, or what it works on is gone."""
        self._engine = engine
        self._zygote = zygote
        self._lock = lock
        self._places = keeper_paths(engine.settings, engine.settings.gpu_model)
        write_identity(lock, myself())
        self._loop = EventLoop()
        self._wake = bind(socket.SOCK_DGRAM, self._places.wake_socket)
        door = bind(socket.SOCK_STREAM, self._places.door_socket)
        self._door = Door(self._loop, door, self._still_waits, self._reason)
        self._vigil = ProcessWatcher(self._loop, self._somebody_died)
        self._watchdog = Watchdog(engine)
        self._deadlines = Deadlines()
        self._outcome = self._said = RoundOutcome()
        self._said_at_seconds = 0.0
        self._capacities: Mapping[str, int] = {}
        self._timer: Timer | None = None
        self._glances = 0
        self._round_at_seconds = 0.0
        self._needed_at_seconds = -LINGER_SECONDS
        self._is_over = self._has_unattended = False
        engine.starter = zygote.start
        self._loop.watch(self._wake.fileno(), READABLE, lambda _: self._read_words())
        self._loop.watch(zygote.fileno(), READABLE, lambda _: self._lame())

    def run(self) -> None:
        """Look until there is nothing to look after."""
        _allow_many_descriptors()
        self._look_around()
        self._loop.call_later(PAUSES_SECONDS[-1], self._look_for_outsiders)
        self._loop.run_until(lambda: self._is_over)

    def close(self) -> None:
        """Be reached by nobody any more."""
        for path in (self._places.wake_socket, self._places.door_socket):
            if is_locked_file(self._places.lock, self._lock):
                path.unlink(missing_ok=True)
        self._wake.close()
        self._door.close()
        self._vigil.watch(set())
        self._watchdog.close()
        self._loop.close()

    def _read_words(self) -> None:
        """Take every message that is there; any number of words to look mean one look."""
        with suppress(BlockingIOError):
            while True:
                words = self._wake.recv(_MOST_WORD_BYTES)
                self._needed_at_seconds = now_seconds()
                if words == GO:
                    self.is_dismissed = self._is_over = True
                elif words.startswith(START):
                    self._zygote.start(words.removeprefix(START).decode().strip())
        self._glances = 0
        self._patiently(self._look)

    def _lame(self) -> None:
        self.is_lamed = self._is_over = True

    def _somebody_died(self) -> None:
        self._glances = 0
        self._look_around()

    def _look_around(self) -> None:
        self._patiently(lambda: recover(self._engine))
        self._patiently(self._look)

    def _look(self) -> None:
        """Admit what fits, have it started, and tell whoever waits."""
        due = self._deadlines.due()
        self._engine.admissions.plan()
        self._outcome = self._engine.admissions.step(due)
        self._round_at_seconds = now_seconds()
        self._capacities = self._outcome.capacities
        if self._outcome.waiting_ids:
            self._needed_at_seconds = now_seconds()
        for job_id in self._outcome.granted:
            self._zygote.start(job_id)
        self._deadlines.follow(self._outcome.deadlines_seconds)
        self._door.let_go(self._outcome.waiting_ids)
        self._say_reasons()
        self._watch_holders()
        self._sleep()

    def _glance(self) -> None:
        """See cheaply whether there is anything to look at."""
        self._glances += 1
        self._engine.ledger.refuse_if_gone()
        if self._has_unattended:
            recover(self._engine)
            self._watch_holders()
        if not is_locked_file(self._places.lock, self._lock):
            self._is_over = self.is_dismissed = True  # Its directory is gone: nobody can find it here.
        elif not self._outcome.waiting_ids:
            self._is_over = now_seconds() - self._needed_at_seconds > LINGER_SECONDS
            self._sleep()
        elif now_seconds() - self._round_at_seconds > ROUND_SECONDS:
            self._look_around()
        elif (
            self._deadlines.due()
            or (self._outcome.has_waves and now_seconds() - self._round_at_seconds >= WAVES_SECONDS)
            or self._engine.capacities() != self._capacities
        ):
            self._look()
        else:
            self._say_reasons()
            self._watch_holders()
            self._sleep()

    def _say_reasons(self) -> None:
        """Not after each of many rounds in a row: to tell reasons, whose turn it is must be found out."""
        if self._said is not self._outcome and now_seconds() - self._said_at_seconds > REASONS_SECONDS:
            self._said, self._said_at_seconds = self._outcome, now_seconds()
            self._door.tell()

    def _watch_holders(self) -> None:
        """Watch whoever holds memory and whoever looks after it: their deaths free some, or leave it to nobody."""
        with self._engine.ledger.view() as view:
            entries = self._engine.queue_of(view.holding())
        self._vigil.watch({holder for entry in entries for holder in _processes(entry)})
        self._has_unattended = any(entry.supervisor is None for entry in entries)
        if self._has_unattended:  # Whoever was to start its supervisor may have died over it.
            self._needed_at_seconds = now_seconds()

    def _look_for_outsiders(self) -> None:
        self._patiently(self._watchdog.tick)
        self._loop.call_later(PAUSES_SECONDS[-1], self._look_for_outsiders)

    def _still_waits(self, job_id: str) -> bool:
        with suppress(PgpuError):
            return self._engine.ledger.waits(job_id)
        return True

    def _reason(self, job_id: str) -> str | None:
        return self._outcome.reason(job_id)

    def _patiently(self, act: Callable[[], None]) -> None:
        """A ledger or a machine that refuses for a while (a full disk, no more processes) ends no job."""
        try:
            act()
        except LedgerGoneError as exc:
            say(f"{exc}: its keeper ends")
            self._is_over = self.is_dismissed = True
        except PgpuError as exc:
            say(str(exc))
            self._sleep(RETRY_SECONDS)

    def _sleep(self, seconds: float | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if seconds is None:
            pause = PAUSES_SECONDS[min(self._glances, len(PAUSES_SECONDS) - 1)]
            seconds = min(pause if self._outcome.waiting_ids else PAUSES_SECONDS[-1], self._deadlines.next_seconds())
        self._timer = self._loop.call_later(seconds, lambda: self._patiently(self._glance))


def _processes(entry: Entry) -> list[ProcessHolder]:
    found = [entry.supervisor, entry.job.holder]
    return [holder for holder in found if isinstance(holder, ProcessHolder)]


def _allow_many_descriptors() -> None:
    """Whoever waits for a job has a connection here."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
