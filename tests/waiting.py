"""Waiting until something is so: the one place where a test pauses between two looks.

The deadline is one of progress: a second in which a task of the machine waited for a processor counts a tenth, so a test has as
much time at a load of ten tasks for each core as on an idle machine.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

DEADLINE_SECONDS = 240

_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.01, 0.1
_PRESSURE = Path("/proc/pressure/cpu")

_Answer = TypeVar("_Answer")


def until(question: Callable[[], _Answer], complaint: Callable[[], object] = lambda: "it never came true") -> _Answer:
    """Ask again and again until the answer is true, and return it; a failed assertion after the deadline."""
    began = progress_seconds()
    pause_seconds = _PAUSE_SECONDS
    while not (answer := question()):
        assert progress_seconds() - began < DEADLINE_SECONDS, complaint()
        time.sleep(pause_seconds)  # noqa: TID251 - the pause between two looks
        # What takes long is asked for less often: the question takes processor time from what it waits for.
        pause_seconds = min(pause_seconds * 1.02, _LONGEST_PAUSE_SECONDS)
    return answer


def progress_seconds(pressure: Path = _PRESSURE) -> float:
    """Return seconds of a clock that runs at a tenth of its speed while a task waits for a processor.

    Args:
        pressure: The kernel's pressure-stall information; without it the clock always runs at full speed.
    """
    try:
        stalled_us = int(re.findall(r"^some .*total=(\d+)$", pressure.read_text("ascii"), re.MULTILINE)[0])
    except OSError:  # no such file, or psi=0 on the kernel's command line
        stalled_us = 0
    return time.monotonic() - 0.9e-6 * stalled_us


def is_over(process: psutil.Process) -> bool:
    """Whether a process ended, reaped or not, also while it ends between two reads of /proc."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, ProcessLookupError):  # psutil lets an ESRCH of /proc/PID/stat through
        return True
