"""The jobs that an agent supervises: in threads, so that an engine or driver that blocks delays no other job.

A job has a thread while something happens: its start, its end, a client, a request to stop. After `CALM_SECONDS` without anything
the thread ends, and what is left of the supervision is a generator that stands at its wait, and a descriptor in the loop of the
agent's main thread. That is the job's epoll descriptor: it is ready when one of the job's own is (the pidfd, the sockets, the event
of `beats`), and then another thread goes on with the generator. So hundreds of jobs that only run have no thread. One spare thread
takes such a step where none can be created: a job that has used up the process numbers must be stopped all the same.

A container of `docker run --runtime=pgpu` is attended from its creation on, which submits its request as well. Supervision that
ends leaves its job released, queued again, or unsupervised because of an error that was logged. The agent compares the ledger
with `ids` and begins again with what is left.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from queue import SimpleQueue

from pgpu.engine.agent.containers import SubmissionTurn, container_home
from pgpu.engine.beats import Beats
from pgpu.engine.engine import Engine
from pgpu.engine.event_loop import READABLE, EventLoop, Timer
from pgpu.engine.supervisor import TakeMonitor, supervision
from pgpu.errors import JobNotFoundError, PgpuError
from pgpu.host import thread_turns
from pgpu.host.stderr_log import Complaints, say, say_traceback
from pgpu.structs import Struct

RETRY_SECONDS = 1.0
"""Pause before a job is supervised again after an error, and before a thread is started again."""

_TURNS = 2
"""Threads that run at a time: one of them has the interpreter, and the other one waits for a disk or a driver."""

_STACK_BYTES = 1 << 20
"""Of a thread; only touched pages count."""

AttendContainer = Callable[[Engine, str, SubmissionTurn, Callable[[], EventLoop]], Iterator[EventLoop]]
"""Attends a container, by an engine, the id of its slice, its turn and what makes its event loops; yields one while nothing
happens, as `supervision` does."""


class _Attended(Struct):
    """One job, and how far its supervision is."""

    job_id: str
    steps: Iterator[EventLoop]
    thread: threading.Thread | None = None
    """That takes the next step; None while the job is calm."""

    loop: EventLoop | None = None
    """Of the job, while it is calm or its thread has just ended; None after its last step."""

    timer: Timer | None = None
    """Of the first timer of `loop`, while the job is calm."""


class Attendants:
    """The jobs of one agent. All methods are called in the agent's main thread."""

    def __init__(  # noqa: PLR0917 - the calls of one agent
        self,
        loop: EventLoop,
        engine: Engine,
        engine_of: Callable[[str], Engine],
        attend_container: AttendContainer,
        take_monitor: TakeMonitor,
        on_end: Callable[[], None],
    ) -> None:
        """Start no job.

        Args:
            loop: Of the agent's main thread.
            engine: Of the agent.
            engine_of: Returns the engine with the settings of a job's submitter; called in a thread of the job.
            attend_container: Does what a container needs from its creation to its end; called in its threads.
            take_monitor: Returns the monitor that a command offers for its job; called in a thread of the job.
            on_end: Called in the main thread after the end of supervision that may be needed again.
        """
        self._loop = loop
        self._engine = engine
        self._engine_of = engine_of
        self._attend_container = attend_container
        self._take_monitor = take_monitor
        self._on_end = on_end
        self._beats = Beats(loop)
        self._attended: dict[str, _Attended] = {}
        self._failed_at_seconds: dict[str, float] = {}
        self._engines: set[Engine] = set()
        self._granted_again: set[str] = set()
        """Jobs that were to be started while they were attended."""

        self._stopped: list[_Attended] = []
        """Whose threads end now."""

        self._last_turn: threading.Event | None = None
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._complaints = Complaints()
        threading.stack_size(_STACK_BYTES)
        self._spare_steps: SimpleQueue[_Attended | None] = SimpleQueue()
        self._spare = threading.Thread(target=self._take_spare_steps, name="spare", daemon=True)
        self._is_spare_free = False
        with suppress(RuntimeError):
            self._spare.start()
            self._is_spare_free = True
        thread_turns.limit_turns(_TURNS)
        loop.watch(self._event, READABLE, lambda _: self._collect())

    @property
    def ids(self) -> Collection[str]:
        """The jobs that are attended, whether they have a thread now or not."""
        return self._attended.keys()

    def start(self, job_id: str) -> None:
        """Attend a job.

        If it is attended already, `on_end` is called after that: the job may have been granted again before its last step is
        over. No effect if an error ended its supervision less than `RETRY_SECONDS` ago.
        """
        if job_id in self._attended:
            self._granted_again.add(job_id)
            return
        if time.monotonic() < self._failed_at_seconds.get(job_id, -RETRY_SECONDS) + RETRY_SECONDS:
            return
        turn = SubmissionTurn(self._last_turn) if container_home(self._engine, job_id) is not None else None
        attended = _Attended(job_id, self._attend(job_id, turn))
        if not self._go_on(attended):
            self._failed_at_seconds[job_id] = time.monotonic()
            return
        self._attended[job_id] = attended
        self._last_turn = self._last_turn if turn is None else turn.over

    def look(self) -> None:
        """Do the periodic work of all jobs; called once a second."""
        self._beats.strike()

    def close(self) -> None:
        """Close the event and end the spare thread; other threads that run are the process's."""
        self._spare_steps.put(None)
        self._beats.close()
        self._loop.forget(self._event)
        os.close(self._event)

    def _go_on(self, attended: _Attended) -> bool:
        """Start a thread that takes a job's next step; return whether there is one."""
        thread = threading.Thread(target=self._step, args=(attended,), name=attended.job_id, daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:  # no memory or no process number is left
            self._complaints.say(f"job {attended.job_id} cannot be supervised: {exc}")
            return False
        attended.thread = thread
        return True

    def _wake(self, attended: _Attended) -> None:
        """Have a calm job go on, at the next time that there can be a thread."""
        if attended.timer is not None:
            attended.timer.cancel()
        if attended.loop is not None:
            self._loop.forget(attended.loop.fileno())
        if self._go_on(attended):
            return
        if self._is_spare_free:
            self._is_spare_free = False
            attended.thread = self._spare
            self._spare_steps.put(attended)
        else:
            attended.timer = self._loop.call_later(RETRY_SECONDS, lambda: self._wake(attended))

    def _take_spare_steps(self) -> None:
        for attended in iter(self._spare_steps.get, None):
            self._step(attended)

    def _step(self, attended: _Attended) -> None:
        try:
            attended.loop = next(attended.steps, None)
        except BaseException:  # noqa: BLE001 - one that could not be logged: the ledger has the job, which is attended again
            attended.loop = None
        self._stopped.append(attended)
        os.eventfd_write(self._event, 1)

    def _attend(self, job_id: str, turn: SubmissionTurn | None) -> Iterator[EventLoop]:
        try:
            engine = self._engine_of(job_id)
            self._engines.add(engine)
            if turn is not None:
                yield from self._attend_container(engine, job_id, turn, self._beats.make_loop)
            else:
                yield from supervision(engine, job_id, self._take_monitor, self._beats.make_loop)
        except JobNotFoundError:
            pass  # the ledger was replaced, or has deleted the job
        except PgpuError as exc:
            say(f"job {job_id} cannot be supervised: {exc}")
            self._failed_at_seconds[job_id] = time.monotonic()
        except Exception:  # noqa: BLE001 - a bug in the supervision of one job must not end that of the others
            say_traceback()
            self._failed_at_seconds[job_id] = time.monotonic()
        finally:
            if turn is not None:
                turn.over.set()

    def _collect(self) -> None:
        os.eventfd_read(self._event)
        ended = set()
        while self._stopped:
            attended = self._stopped.pop()
            if attended.thread is self._spare:
                self._is_spare_free = True
            elif attended.thread is not None:
                attended.thread.join()
            attended.thread = None
            if attended.loop is None:
                ended.add(attended.job_id)
            else:
                self._rest(attended, attended.loop)
        for job_id in ended:
            del self._attended[job_id]
        if not self._attended:
            # Nothing of this process uses a GPU any more: another ledger may have them.
            while self._engines:
                self._engines.pop().gpu_locks.close()
            self._failed_at_seconds.clear()
        if not ended.isdisjoint(self._granted_again):
            self._granted_again -= ended
            self._on_end()

    def _rest(self, attended: _Attended, loop: EventLoop) -> None:
        """Have a calm job go on once something happens to it."""
        self._loop.watch(loop.fileno(), READABLE, lambda _: self._wake(attended))
        seconds = loop.timeout_seconds()
        attended.timer = None if seconds is None else self._loop.call_later(seconds, lambda: self._wake(attended))
