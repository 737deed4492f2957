"""Waiting until something is so: the one place where a test pauses between two looks."""

import time
from collections.abc import Callable
from typing import TypeVar

DEADLINE_SECONDS = 240

_PAUSE_SECONDS = 0.01

_Answer = TypeVar("_Answer")


def until(question: Callable[[], _Answer], complaint: Callable[[], object] = lambda: "it never came true") -> _Answer:
    """Ask again and again until the answer is true, and return it; a failed assertion after the deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (answer := question()):
        assert time.monotonic() < deadline, complaint()
        time.sleep(_PAUSE_SECONDS)  # noqa: TID251 - the pause between two looks
    return answer
