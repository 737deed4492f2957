"""Repairs of the three standard streams that a caller closed, or whose encoding cannot take every byte."""

import errno
import io
import os
import sys
from typing import TypeGuard

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def prepare() -> None:
    """Open closed streams on /dev/null, and let stdout replace characters that it cannot encode."""
    _replace_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A command may hold bytes that are not UTF-8; unreplaced, they would make invalid JSON.
        sys.stdout.reconfigure(errors="replace")


def _replace_closed() -> None:
    """Without this, the next opened file would get the number of a closed stream."""
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
    """Whether a write to a stream failed for lack of space; errors of files name their files."""
    return isinstance(error, OSError) and error.errno in _FULL and error.filename is None


def silence_output() -> None:
    """Send Python's flush at exit to /dev/null."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
