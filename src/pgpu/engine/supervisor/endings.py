"""The final states of jobs: failed, cancelled, or ended with a warning.

Pure except for the clock: each function returns a change of the job, which the caller writes in a transaction.
"""

import time
from collections.abc import Callable

from pgpu.errors import CancelledError, CommandNotExecutableError, CommandNotFoundError, PgpuError
from pgpu.model import Job, JobState
from pgpu.structs import replace

EXIT_CODES = {CommandNotExecutableError: 126, CommandNotFoundError: 127}
"""Exit codes for commands that could not be executed; the same as Docker's."""


def warned(final: Callable[[Job], Job], warning: str | None) -> Callable[[Job], Job]:
    """Return `final` with a warning added to the job's own; None adds nothing."""

    def with_warning(job: Job) -> Job:
        ended = final(job)
        return replace(ended, warning="; ".join(filter(None, (ended.warning, warning))) or None)

    return with_warning


def failed(exc: PgpuError, *, has_run: bool = True) -> Callable[[Job], Job]:
    """Return a function that makes a job `failed` with this error, or `cancelled` for a CancelledError.

    Args:
        exc: The error.
        has_run: False for a job whose command was never executed: it has no time of start then.
    """
    text = str(exc) if exc.hint is None else f"{exc} ({exc.hint})"
    codes = [code for kind, code in EXIT_CODES.items() if isinstance(exc, kind)]

    def final(job: Job) -> Job:
        now_seconds = time.time()
        job = job if has_run else replace(job, started_at_seconds=None)
        if isinstance(exc, CancelledError):
            return replace(job, state=JobState.CANCELLED, finished_at_seconds=now_seconds, reason=None)
        code = codes[0] if codes else None
        return replace(
            job, state=JobState.FAILED, error=text, exit_code=code, finished_at_seconds=now_seconds, reason=None
        )

    return final
