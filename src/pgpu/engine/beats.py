"""The periodic work of an agent's jobs: its main thread does it once a second for all of them, while they have no thread or it sleeps.

Each job has an event loop, which would wake a thread each second to measure the job. Instead the main thread *strikes* these
loops one after the other. A lock of each loop is held by the thread that runs it except while that waits; the main thread takes
it and makes the calls that are due, so no two threads ever run calls of one loop. Where a thread is at work, it makes them itself
before it waits again. A call that may block, on a container engine or an MPS daemon, is left to a thread: the loop becomes ready,
which wakes the one that waits, or has the agent start one (`agent.attendants`).
"""

import contextvars
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from pgpu.engine.event_loop import CALM_SECONDS, READABLE, EventLoop, Ready, Timer
from pgpu.engine.write_watch import WriteWatch

LONGEST_PART_SECONDS = 0.01
"""After so long in a row the main thread reads its own messages before it strikes the next loop."""


class JobLoop(EventLoop):
    """The event loop of a job; run in one thread at a time."""

    def __init__(
        self, on_close: Callable[["JobLoop"], None], writes: WriteWatch, calm_seconds: float = CALM_SECONDS
    ) -> None:
        super().__init__(calm_seconds=calm_seconds)
        self._on_close = on_close
        self._writes = writes
        self._written: dict[Path, Callable[[], None]] = {}
        """Calls after a write to a file."""

        self._is_written = False
        self._beaten: list[tuple[Timer, Callable[[], bool]]] = []
        """Calls at the next strike, and whether the main thread may make them."""

        self._at_work = threading.Lock()
        self._at_work.acquire()
        self._context = contextvars.copy_context()  # has the file of the job's log
        self._is_due = False
        self._error: Exception | None = None
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.watch(self._event, READABLE, lambda _: self._read_event())

    def call_on_beat(
        self,
        call: Callable[[], None],
        period_seconds: float = 1.0,  # noqa: ARG002 - that of the strikes
        is_light: Callable[[], bool] = lambda: True,
    ) -> Timer:
        """Call once, at the next strike; `period_seconds` is that of the strikes."""
        timer = Timer(self.now_seconds(), call)
        self._beaten.append((timer, is_light))
        return timer

    def call_on_write(self, path: Path, call: Callable[[], None]) -> None:
        self._written[path] = call
        self._writes.add(path, self._note_write)

    def _note_write(self) -> None:
        """Have the thread make the calls after a write; called in the main thread."""
        self._is_written = True
        # Else a thread is at work: it makes the calls before it waits. If it has just begun to wait, the next call of `WriteWatch`
        # finds it waiting.
        if self._at_work.acquire(blocking=False):
            os.eventfd_write(self._event, 1)
            self._at_work.release()

    def strike(self) -> None:
        """Make the calls that are due, or have the thread make them; called in the main thread. Errors are raised in the thread."""
        if not self._at_work.acquire(blocking=False):
            # Checked by the thread before it waits. If that was a moment ago, the calls are made at the next strike.
            self._is_due = True
            return
        timers = len(self._timers)
        try:
            self._context.run(self._call_beaten, is_struck=True)
        except Exception as exc:  # noqa: BLE001 - the thread's: it decides what an error means for its job
            self._error = exc
        if self._is_due or self._error is not None or len(self._timers) != timers:
            os.eventfd_write(self._event, 1)  # The thread waits for another time, or must do something itself.
        self._at_work.release()

    def calm_until(self, is_done: Callable[[], bool]) -> Iterator[EventLoop]:
        for _ in super().calm_until(is_done):
            self._at_work.release()
            try:
                yield self
            finally:
                self._at_work.acquire()

    def close(self) -> None:
        # The lock stays held: from now on a strike calls nothing and writes to no descriptor.
        self._on_close(self)
        for path in self._written:
            self._writes.remove(path)
        os.close(self._event)
        super().close()

    def _wait(self, timeout_seconds: float | None) -> Ready:
        if self._is_due:
            self._is_due = False
            self._call_beaten(is_struck=False)
            return []
        if self._is_written:
            self._is_written = False
            for call in list(self._written.values()):
                call()
            return []
        self._at_work.release()
        try:
            ready = super()._wait(timeout_seconds)
        finally:
            self._at_work.acquire()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return ready

    def _read_event(self) -> None:
        with suppress(BlockingIOError):  # A nested `run_until` of the same round has read it.
            os.eventfd_read(self._event)

    def _call_beaten(self, *, is_struck: bool) -> None:
        # Those that are added meanwhile wait for the next strike. After an error the rest does, too.
        for _ in range(len(self._beaten)):
            timer, is_light = self._beaten.pop(0)
            if timer.call is None:
                continue
            if is_struck and not is_light():
                self._beaten.append((timer, is_light))
                self._is_due = True
            else:
                timer.call()


class Beats:
    """The loops of an agent's jobs, and the strikes of its main thread."""

    def __init__(self, loop: EventLoop) -> None:
        """Make no loop yet; `loop` is that of the main thread."""
        self._loop = loop
        self._loops: set[JobLoop] = set()
        self._writes = WriteWatch(loop)

    def make_loop(self, calm_seconds: float = CALM_SECONDS) -> JobLoop:
        """Return a new loop for the calling thread; see `EventLoop`."""
        made = JobLoop(self._loops.discard, self._writes, calm_seconds)
        self._loops.add(made)
        return made

    def close(self) -> None:
        """Stop watching files."""
        self._writes.close()

    def strike(self) -> None:
        """Strike every loop once; called in the main thread."""
        self._strike_some(list(self._loops))

    def _strike_some(self, left: list[JobLoop]) -> None:
        until_seconds = self._loop.now_seconds() + LONGEST_PART_SECONDS
        while left:
            left.pop().strike()
            if self._loop.now_seconds() > until_seconds:
                self._loop.call_later(0.0, lambda: self._strike_some(left))
                return
