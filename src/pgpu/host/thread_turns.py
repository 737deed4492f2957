"""Turns of the threads of one process: only a few of hundreds run Python code at a time.

Each thread that waits for CPython's global interpreter lock wakes every few milliseconds, and all of them at each handover. So
threads without a turn wait for one here, asleep. A thread gives its turn up while it waits for something else.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

LONGEST_WAIT_SECONDS = 1.0
"""A thread that has waited for a turn so long runs without one: those that have one may all be blocked."""

_turns: SimpleQueue[None] | None = None
_longest_wait_seconds = LONGEST_WAIT_SECONDS
_own = threading.local()


def limit_turns(count: int | None, longest_wait_seconds: float = LONGEST_WAIT_SECONDS) -> None:
    """Allow so many threads to run at a time from now on; None, as before the first call, is no limit."""
    global _turns, _longest_wait_seconds  # noqa: PLW0603 - one interpreter lock for the process
    _longest_wait_seconds = longest_wait_seconds
    made: SimpleQueue[None] = SimpleQueue()
    for _ in range(count or 0):
        made.put(None)
    _turns = None if count is None else made


@contextmanager
def turn() -> Iterator[None]:
    """Wait for a turn and have it for the block; the main thread, and a thread outside of any such block, need none."""
    _own.needs_turn = True
    _take()
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
            _take()


def _take() -> None:
    _own.has_turn = False
    if _turns is not None:
        try:
            _turns.get(timeout=_longest_wait_seconds)
        except Empty:
            return
        _own.has_turn = True


def _give_up() -> None:
    if _turns is not None and _own.has_turn:
        _own.has_turn = False
        _turns.put(None)
