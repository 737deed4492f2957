"""How a call of pgpu ends: its exit code, and the report of a bug.

The code is the job's own if the job ran, else one of Docker's.
"""

import sys
from typing import TYPE_CHECKING

from pgpu.errors import (
    CancelledError,
    CommandNotExecutableError,
    CommandNotFoundError,
    PgpuBug,
    PgpuError,
    UsageError,
    WaitTimeoutError,
)

if TYPE_CHECKING:
    from pgpu.model import Job

OK = 0
CHECK_FAILED = 1
"""`pgpu doctor` found a fault."""

CALL_FAILED = 1
"""`pgpu function invoke`: the function failed."""

CALL_REFUSED = 2
"""`pgpu function invoke`: the function refused the request; neither it nor pgpu failed."""

WRONG_USAGE = 2
"""A verb that lists cannot read its options; it runs no job whose code this could be."""

NOT_GRANTED_IN_TIME = 124
PGPU_FAILED = 125
"""Every error of pgpu, wrong options included: 1 and 2 are often codes of jobs."""

NOT_EXECUTABLE = 126
NOT_FOUND = 127
CANCELLED = 130
READER_GONE = 141
"""128 + SIGPIPE: the reader of the output closed it."""

# In this order: the first class that fits decides, as in a chain of `except`.
_BY_ERROR: tuple[tuple[type[PgpuError], int], ...] = (
    (CommandNotFoundError, NOT_FOUND),
    (CommandNotExecutableError, NOT_EXECUTABLE),
    (WaitTimeoutError, NOT_GRANTED_IN_TIME),
    (UsageError, WRONG_USAGE),
    (CancelledError, CANCELLED),
)


def of_error(error: PgpuError) -> int:
    """Return the exit code of an error."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), PGPU_FAILED)


def of_job(job: "Job") -> int:
    """Return the exit code of a job in its final state."""
    from pgpu.model import JobState

    # The job's own code comes first; it is 128 + the number of the signal if a signal ended the job.
    if job.exit_code is not None:
        return job.exit_code
    if job.wait_timed_out:
        return NOT_GRANTED_IN_TIME
    return CANCELLED if job.state is JobState.CANCELLED else PGPU_FAILED


def record_bug(error: Exception) -> PgpuBug:
    """Write the traceback to a file of its own and return the error that names this file."""
    import os
    import platform
    import tempfile
    import traceback

    from pgpu.distribution import installed_version

    place = f"pgpu {installed_version()}, Python {platform.python_version()}, {platform.platform()}"
    details = "".join(traceback.format_exception(error))
    # mkstemp makes the file with mode 0600: the command line and the traceback may hold secrets of the user.
    try:
        descriptor, path = tempfile.mkstemp(prefix="pgpu-bug-", suffix=".txt")
        # Arguments that are not UTF-8 reach Python as lone surrogates, which the default error handler refuses to write.
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{place}\n{sys.argv!r}\n\n{details}")
    except OSError as exc:
        path = f"nowhere, since {exc}"
    return PgpuBug(
        f"this is a bug of pgpu: {type(error).__name__}: {error}", hint=f"please report it; the details are in {path}"
    )
