"""The three standard streams where their caller left something to be desired: closed, full, or strict about bytes.

It refuses to touch streams that work.
"""

import errno
import io
import os
import sys
from typing import TypeGuard

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def prepare() -> None:
    """Make all three usable, whatever the caller closed and whatever bytes a job's own words hold."""
    _replace_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A command may hold bytes that are no text; raw, they would make a line of JSON that nobody can read.
        sys.stdout.reconfigure(errors="replace")


def _replace_closed() -> None:
    """Put an empty file in the place of each closed stream, so that no file of ours gets its number."""
    if sys.stdin is None:
        sys.stdin = open(_null(0), encoding="utf-8")  # noqa: SIM115 - to the end of the process
    if sys.stdout is None:
        sys.stdout = open(_null(1), "w", encoding="utf-8")  # noqa: SIM115 - to the end of the process
    if sys.stderr is None:
        sys.stderr = open(_null(2), "w", encoding="utf-8")  # noqa: SIM115 - to the end of the process


def _null(number: int) -> int:
    descriptor = os.open(os.devnull, os.O_RDWR)
    if descriptor != number:
        os.dup2(descriptor, number, inheritable=False)
        os.close(descriptor)
    return number


def is_full(error: Exception) -> TypeGuard[OSError]:
    """Whether a stream, which has no file name of ours, could not be written for lack of room."""
    return isinstance(error, OSError) and error.errno in _FULL and error.filename is None


def silence_output() -> None:
    """Let Python's last flush at its end go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
