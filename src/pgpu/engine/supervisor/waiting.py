"""A job's time in the queue: asleep until memory may be free, somebody it watches died, or its wait ran out.

Whoever wakes runs the decision; nobody polls but the head of the queue, slowly, for memory that outsiders give back.
Time is told by a clock that nobody sets and that goes on while the machine sleeps.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Sequence

from pgpu.engine.engine import Engine
from pgpu.engine.identity import open_pidfd
from pgpu.engine.loop import READABLE, Loop, Timer
from pgpu.engine.recovery import recover
from pgpu.engine.supervisor.vigil import is_head, watched
from pgpu.errors import PgpuError
from pgpu.ledger import Entry
from pgpu.model import JobState, ProcessHolder

HEAD_PAUSES_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The head of the queue looks again after these, the last repeated: outsiders free memory without telling anybody."""

RETRY_SECONDS = 1.0
"""Before a ledger that refused is tried again."""

OTHERS_PAUSE_SECONDS = 10.0
"""The others look so often whether a wake-up was lost: whether they were granted, or are the head."""

GLANCES_BETWEEN_ROUNDS = 6
"""After so many of these they look at all jobs, for whom to watch: of 100 that wait, that took a tenth of a core."""


class Vigil:
    """The processes that a supervisor watches now."""

    def __init__(self, loop: Loop, on_death: Callable[[], None]) -> None:
        self._loop = loop
        self._on_death = on_death
        self._descriptors: dict[ProcessHolder, int] = {}
        self._dead: set[ProcessHolder] = set()
        self._news: Timer | None = None

    def watch(self, holders: set[ProcessHolder]) -> None:
        """Watch exactly these; a death that came before is told too, once."""
        for holder in set(self._descriptors) - holders:
            self._drop(holder)
        self._dead &= holders
        for holder in holders - set(self._descriptors) - self._dead:
            descriptor = open_pidfd(holder)
            if descriptor is not None:
                self._descriptors[holder] = descriptor
                self._loop.watch(descriptor, READABLE, self._died(holder))
            else:
                self._dead.add(holder)
                self._tell_soon()
        if not holders and self._news is not None:
            self._news.cancel()

    def _tell_soon(self) -> None:
        """Not at once: whoever is told comes here again."""
        if self._news is None or self._news.call is None:
            self._news = self._loop.call_later(0.0, self._tell)

    def _tell(self) -> None:
        self._news = None
        self._on_death()

    def _died(self, holder: ProcessHolder) -> Callable[[int], None]:
        def call(_events: int) -> None:
            self._drop(holder)
            self._on_death()

        return call

    def _drop(self, holder: ProcessHolder) -> None:
        descriptor = self._descriptors.pop(holder)
        self._loop.forget(descriptor)
        os.close(descriptor)


class Waiting:
    """One job in the queue."""

    def __init__(self, engine: Engine, loop: Loop, entry: Entry) -> None:
        self._engine = engine
        self._loop = loop
        self.entry = entry
        self._vigil = Vigil(loop, self._somebody_died)
        self._timer: Timer | None = None
        self._looks = 0
        self._glances = 0
        deadline = entry.wait_deadline_seconds
        self._deadline_seconds = None if deadline is None else _now_seconds() + deadline - time.time()

    @property
    def is_over(self) -> bool:
        """Whether the job was granted or given up."""
        return self.entry.job.state is not JobState.WAITING

    def until_over(self) -> Entry:
        """Sleep in the queue; `woken` is called from the loop.

        A ledger or a machine that refuses for a while (a full disk, no more processes) ends no job: it is tried again.
        """
        self._look_around()
        self._loop.run_until(lambda: self.is_over)
        self._vigil.watch(set())
        if self._timer is not None:
            self._timer.cancel()
        return self.entry

    def woken(self) -> None:
        """Somebody said that there is something to look at."""
        self._looks = 0
        self._patiently(self._look)

    def _somebody_died(self) -> None:
        self._looks = 0
        self._look_around()

    def _look_around(self) -> None:
        self._patiently(lambda: recover(self._engine))
        self._patiently(self._look)

    def _timed(self) -> None:
        self._patiently(self._glance)

    def _glance(self) -> None:
        """Look around if there may be something to do, and else only now and then."""
        self._glances += 1
        if self._glances % GLANCES_BETWEEN_ROUNDS == 0 or self._has_news():
            self._look_around()
        else:
            self._sleep(OTHERS_PAUSE_SECONDS)

    def _has_news(self) -> bool:
        """Whether this job is the head or waits no longer, asked without reading all the others."""
        ledger, mine = self._engine.ledger, self.entry.job
        is_head_now = ledger.first_waiting(mine.gpu_model) == mine.id
        return is_head_now or self._seconds_left() == 0.0 or ledger.job(mine.id).state is not JobState.WAITING

    def _patiently(self, act: Callable[[], None]) -> None:
        try:
            act()
        except PgpuError as exc:
            sys.stderr.write(f"{exc}\n")
            self._sleep(RETRY_SECONDS)

    def _look(self) -> None:
        """Admit if that is on this job, then sleep until the next event that concerns it."""
        self.entry = self._engine.ledger.entry(self.entry.job.id)
        if self.is_over:
            return  # Granted: nobody else is of interest, and memory is held from now on.
        entries = self._refreshed()
        is_out_of_time = self._seconds_left() == 0.0
        if not self.is_over and (is_head(self.entry, entries) or is_out_of_time):
            self._engine.step(self.entry.job.id if is_out_of_time else None)
            entries = self._refreshed()
        if not self.is_over:
            self._vigil.watch(watched(self.entry, entries))
            self._sleep(self._pause_seconds(entries))

    def _refreshed(self) -> Sequence[Entry]:
        self.entry = self._engine.ledger.entry(self.entry.job.id)
        return self._engine.ledger.entries(include_final=False)

    def _pause_seconds(self, entries: Sequence[Entry]) -> float:
        if not is_head(self.entry, entries):
            return OTHERS_PAUSE_SECONDS
        self._looks += 1
        return HEAD_PAUSES_SECONDS[min(self._looks, len(HEAD_PAUSES_SECONDS)) - 1]

    def _sleep(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(min(seconds, self._seconds_left()), self._timed)

    def _seconds_left(self) -> float:
        return math.inf if self._deadline_seconds is None else max(0.0, self._deadline_seconds - _now_seconds())


def _now_seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
