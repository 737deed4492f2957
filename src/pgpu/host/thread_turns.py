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
_own = threading.local()


def limit_turns(count: int) -> None:
    """Allow so many threads to run at a time from now on; without a call there is no limit."""
    global _turns  # noqa: PLW0603 - one interpreter lock for the process
    _turns = SimpleQueue()
    for _ in range(count):
        _turns.put(None)


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
            _turns.get(timeout=LONGEST_WAIT_SECONDS)
        except Empty:
            return
        _own.has_turn = True


def _give_up() -> None:
    if _turns is not None and _own.has_turn:
        _own.has_turn = False
        _turns.put(None)
