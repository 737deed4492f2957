"""The log of pgpu's own processes: `logging` under the name `pgpu`, one line per message on standard error.

Standard error of an agent is a file that may lie on a full disk. `sys.stderr` would raise there and keep the text for its
next flush, which raises again; this handler writes to the descriptor and drops what cannot be written. A thread that
supervises a job logs to the job's own file.

`logging` is imported with the first message: it takes longer to import than most commands run, and they log nothing.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

_STDERR = 2

_before_first_message: list[Callable[[], None]] = []

_file: ContextVar[Path | None] = ContextVar("file", default=None)
"""Where this thread's log goes; None: to standard error."""

_MAX_KINDS = 100


@cache
def _handler() -> "logging.Handler":
    import logging  # noqa: PLC0415 - see above

    class StderrHandler(logging.Handler):
        """Writes the bare message, with the traceback where there is one, to descriptor 2 or to the thread's file."""

        def emit(self, record: logging.LogRecord) -> None:
            """Write a record; a write that fails is dropped."""
            line = f"{self.format(record)}\n".encode("utf-8", "replace")
            path = _file.get()
            with suppress(OSError):
                if path is None:
                    os.write(_STDERR, line)
                else:
                    # Opened for each message: there are few, and an open descriptor for each job would cost more.
                    with path.open("ab", buffering=0) as file:
                        file.write(line)

    return StderrHandler()


def log_to_stderr() -> None:
    """Send the log of this process, and of its forks, to standard error; called once by each program of pgpu.

    A program that imports pgpu as a library configures `logging` as it likes.
    """
    import logging  # noqa: PLC0415 - see above

    log = logging.getLogger("pgpu")
    if _handler() not in log.handlers:
        log.addHandler(_handler())
        log.propagate = False


def log_to_stderr_on_demand() -> None:
    """Call `log_to_stderr` before the first message of this module: for programs that log through it alone."""
    _before_first_message.append(log_to_stderr)


def _logger() -> "logging.Logger":
    import logging  # noqa: PLC0415 - see above

    while _before_first_message:
        _before_first_message.pop()()
    return logging.getLogger("pgpu")


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Append the log of this thread to a file for the block."""
    token = _file.set(path)
    try:
        yield
    finally:
        _file.reset(token)


def say(words: str) -> None:
    """Log a warning."""
    _logger().warning("%s", words)


def say_traceback() -> None:
    """Log the traceback of the exception that is being handled."""
    import traceback  # noqa: PLC0415 - most processes log none

    _logger().error("%s", traceback.format_exc().rstrip())


class Complaints:
    """Logs each kind of message once: messages that differ in numbers alone are one kind.

    A condition that lasts, such as a job's broken file, is met again every second. At most 100 kinds are logged.
    """

    def __init__(self) -> None:
        self._kinds: tuple[str, ...] = ()

    def say(self, words: object) -> None:
        """Log a warning, unless one of its kind was logged."""
        if self._is_new(str(words)):
            _logger().warning("%s", words)

    def say_traceback(self, exc: Exception) -> None:
        """Log the traceback of the exception that is being handled, unless one of its kind was logged."""
        if self._is_new(repr(exc)):
            say_traceback()

    def _is_new(self, words: str) -> bool:
        kind = re.sub(r"\d+", "0", words)
        if kind in self._kinds or len(self._kinds) >= _MAX_KINDS:
            return False
        self._kinds += (kind,)
        return True
