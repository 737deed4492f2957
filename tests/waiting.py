"""Waiting until something is so: the one place where a test pauses between two looks."""

import time
from collections.abc import Callable
from typing import TypeVar

import psutil

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


def is_over(process: psutil.Process) -> bool:
    """Whether a process ended, reaped or not, also while it ends between two reads of /proc."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, ProcessLookupError):  # psutil lets an ESRCH of /proc/PID/stat through
        return True
