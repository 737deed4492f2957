"""What a job that ended becomes: failed, cancelled, or ended with one more thing to say of it.

It refuses to write anything; the engine's decision does.
"""

import time
from collections.abc import Callable

from pgpu.errors import CancelledError, CommandNotExecutableError, CommandNotFoundError, PgpuError
from pgpu.model import Job, JobState
from pgpu.structs import replace

EXIT_CODES = {CommandNotExecutableError: 126, CommandNotFoundError: 127}
"""Of jobs that never ran; as Docker's."""


def warned(final: Callable[[Job], Job], warning: str | None) -> Callable[[Job], Job]:
    """Return what makes of a job one that ended so, with one more thing to say of it."""

    def with_warning(job: Job) -> Job:
        ended = final(job)
        return replace(ended, warning="; ".join(filter(None, (ended.warning, warning))) or None)

    return with_warning


def failed(exc: PgpuError) -> Callable[[Job], Job]:
    """Return what makes of a job one that could not be started or was lost."""
    text = str(exc) if exc.hint is None else f"{exc} ({exc.hint})"
    codes = [code for kind, code in EXIT_CODES.items() if isinstance(exc, kind)]

    def final(job: Job) -> Job:
        now_seconds = time.time()
        if isinstance(exc, CancelledError):
            return replace(job, state=JobState.CANCELLED, finished_at_seconds=now_seconds, reason=None)
        code = codes[0] if codes else None
        return replace(
            job, state=JobState.FAILED, error=text, exit_code=code, finished_at_seconds=now_seconds, reason=None
        )

    return final
