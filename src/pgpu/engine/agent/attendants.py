"""The jobs that an agent supervises: one thread each, so that an engine or driver that blocks delays no other job.

A container of `docker run --runtime=pgpu` has its thread from its creation on, which submits its request as well. A thread that
ends leaves its job released, queued again, or unsupervised because of an error that was logged. The agent compares the ledger
with `ids` and starts a thread again for what is left.
"""

import os
import threading
import time
from collections.abc import Callable, Collection

from pgpu.engine.agent.containers import SubmissionTurn, container_home
from pgpu.engine.beats import Beats
from pgpu.engine.engine import Engine
from pgpu.engine.event_loop import READABLE, EventLoop
from pgpu.engine.supervisor import TakeMonitor, supervise
from pgpu.errors import JobNotFoundError, PgpuError
from pgpu.host import thread_turns
from pgpu.host.stderr_log import log_to_file, say, say_traceback

RETRY_SECONDS = 1.0
"""Pause before a job gets another thread after one ended by an error."""

_TURNS = 2
"""Threads that run at a time: one of them has the interpreter, and the other one waits for a disk or a driver."""

_STACK_BYTES = 1 << 20
"""Of a thread; only touched pages count."""

AttendContainer = Callable[[Engine, str, SubmissionTurn, Callable[[], EventLoop]], None]
"""Attends a container, by an engine, the id of its slice, its turn and what makes the event loop of its thread."""


class Attendants:
    """The threads of one agent. All methods are called in the agent's main thread."""

    def __init__(  # noqa: PLR0917 - the calls of one agent
        self,
        loop: EventLoop,
        engine: Engine,
        engine_of: Callable[[str], Engine],
        attend_container: AttendContainer,
        take_monitor: TakeMonitor,
        on_end: Callable[[], None],
    ) -> None:
        """Start nothing.

        Args:
            loop: Of the agent's main thread.
            engine: Of the agent.
            engine_of: Returns the engine with the settings of a job's submitter; called in the job's thread.
            attend_container: Does what a container needs from its creation to its end; called in its thread.
            take_monitor: Returns the monitor that a command offers for its job; called in the job's thread.
            on_end: Called in the main thread after the end of threads whose jobs may need another one.
        """
        self._loop = loop
        self._engine = engine
        self._engine_of = engine_of
        self._attend_container = attend_container
        self._take_monitor = take_monitor
        self._on_end = on_end
        self._beats = Beats(loop)
        self._threads: dict[str, threading.Thread] = {}
        self._failed_at_seconds: dict[str, float] = {}
        self._engines: set[Engine] = set()
        self._granted_again: set[str] = set()
        """Jobs that were to be started while they had a thread."""

        self._ended: list[str] = []
        self._last_turn: threading.Event | None = None
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        threading.stack_size(_STACK_BYTES)
        thread_turns.limit_turns(_TURNS)
        loop.watch(self._event, READABLE, lambda _: self._collect())

    @property
    def ids(self) -> Collection[str]:
        """The jobs that have a thread."""
        return self._threads.keys()

    def start(self, job_id: str) -> None:
        """Start a thread for a job.

        If it has one, `on_end` is called after that one: the job may have been granted again before its thread is over. No
        effect if one ended by an error less than `RETRY_SECONDS` ago.
        """
        if job_id in self._threads:
            self._granted_again.add(job_id)
            return
        if time.monotonic() < self._failed_at_seconds.get(job_id, -RETRY_SECONDS) + RETRY_SECONDS:
            return
        turn = SubmissionTurn(self._last_turn) if container_home(self._engine, job_id) is not None else None
        thread = threading.Thread(target=self._attend, args=(job_id, turn), name=job_id, daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:  # no memory or no process number is left
            say(f"job {job_id} cannot be supervised: {exc}")
            self._failed_at_seconds[job_id] = time.monotonic()
        else:
            self._threads[job_id] = thread
            self._last_turn = self._last_turn if turn is None else turn.over

    def look(self) -> None:
        """Do the periodic work of all jobs; called once a second."""
        self._beats.strike()

    def close(self) -> None:
        """Close the event; threads that run are the process's."""
        self._loop.forget(self._event)
        os.close(self._event)

    def _attend(self, job_id: str, turn: SubmissionTurn | None) -> None:
        try:
            engine = self._engine_of(job_id)
            self._engines.add(engine)
            if turn is not None:
                self._attend_container(engine, job_id, turn, self._beats.make_loop)
            else:
                places = engine.places(job_id)
                with log_to_file(places.supervisor_log), thread_turns.turn():
                    supervise(engine, job_id, self._take_monitor, self._beats.make_loop)
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
            self._ended.append(job_id)
            os.eventfd_write(self._event, 1)

    def _collect(self) -> None:
        os.eventfd_read(self._event)
        ended = set()
        while self._ended:
            ended.add(self._ended.pop())
        for job_id in ended:
            self._threads.pop(job_id).join()
        if not self._threads:
            # Nothing of this process uses a GPU any more: another ledger may have them.
            while self._engines:
                self._engines.pop().release_gpus()
            self._failed_at_seconds.clear()
        if not ended.isdisjoint(self._granted_again):
            self._granted_again -= ended
            self._on_end()
