"""Turns of the threads of one process: only a few of hundreds run Python code at a time.

Each thread that waits for CPython's global interpreter lock wakes every few milliseconds, and all of them at each handover. So
threads without a turn wait for one here, asleep. A thread gives its turn up while it waits for something else. One that comes
back from there gets the next turn before threads that begin: what was begun is finished first, so that a hundred jobs that
start together do not all wait for each other. Every eighth turn goes to the thread that has waited longest to begin.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from pgpu.structs import Struct, field

LONGEST_WAIT_SECONDS = 1.0
"""A waiting thread runs without a turn if none was handed over for so long: those that have one may all be blocked."""

_BEGINNERS_SHARE = 8

_own = threading.local()


class _Waiter(Struct):
    """One thread that waits; `woken` is locked until it has a turn."""

    woken: threading.Lock
    is_waiting: bool = True


class _Turns(Struct):
    """The turns of this process; `guard` is held for a few instructions only."""

    free: int
    longest_wait_seconds: float
    guard: threading.Lock = field(default_factory=threading.Lock)
    beginning: deque[_Waiter] = field(default_factory=deque)
    returning: deque[_Waiter] = field(default_factory=deque)
    handed_over: int = 0

    def take(self, queue: deque[_Waiter]) -> bool:
        """Wait for a turn in one of the two queues; False if the holders of all turns seem to be blocked."""
        with self.guard:
            if self.free:
                self.free -= 1
                return True
            waiter = _Waiter(threading.Lock())
            waiter.woken.acquire()
            queue.append(waiter)
        while True:
            seen = self.handed_over
            if waiter.woken.acquire(timeout=self.longest_wait_seconds):
                return True
            with self.guard:
                if waiter.is_waiting and seen == self.handed_over:
                    queue.remove(waiter)
                    return False

    def give(self) -> None:
        """Hand a turn over to the next thread."""
        with self.guard:
            self.handed_over += 1
            first, second = self.returning, self.beginning
            if self.handed_over % _BEGINNERS_SHARE == 0:
                first, second = second, first
            if not first and not second:
                self.free += 1
                return
            waiter = (first or second).popleft()
            waiter.is_waiting = False
            waiter.woken.release()


_turns: _Turns | None = None


def limit_turns(count: int | None, longest_wait_seconds: float = LONGEST_WAIT_SECONDS) -> None:
    """Allow so many threads to run at a time from now on; None, as before the first call, is no limit."""
    global _turns  # noqa: PLW0603 - one interpreter lock for the process
    _turns = None if count is None else _Turns(count, longest_wait_seconds)


@contextmanager
def turn(*, has_begun: bool = False) -> Iterator[None]:
    """Wait for a turn and have it for the block; the main thread, and a thread outside of any such block, need none.

    Args:
        has_begun: Whether the block goes on with what another thread began.
    """
    _own.needs_turn = True
    _own.has_turn = _turns is not None and _turns.take(_turns.returning if has_begun else _turns.beginning)
    try:
        yield
    finally:
        _give_up()
        _own.needs_turn = False


@contextmanager
def pause() -> Iterator[None]:
    """Give the turn up for the block, which waits for something else; does nothing in a thread that has none."""
    needs_turn = getattr(_own, "needs_turn", False)
    if needs_turn:
        _own.needs_turn = False  # A pause inside of this one must take no turn: this one takes it back.
        _give_up()
    try:
        yield
    finally:
        if needs_turn:
            _own.needs_turn = True
            _own.has_turn = _turns is not None and _turns.take(_turns.returning)


def _give_up() -> None:
    if _turns is not None and _own.has_turn:
        _own.has_turn = False
        _turns.give()
