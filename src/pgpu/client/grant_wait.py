"""A wait in the queue as one client of a server sees it: one question under way at a time, however often somebody looks.

The server answers as soon as the job waits no longer, or after a while with why it still does. This module refuses to
decide how long anybody waits.
"""

import threading
from collections.abc import Callable

from pgpu.errors import CancelledError, PgpuError, WaitTimeoutError
from pgpu.model import Job, JobState

_FIRST_SECONDS = 0.2
"""Before a reason is asked for, which is work for the server: most jobs start at once."""

_SHORTEST_SECONDS = 2.0
_LONGEST_SECONDS = 16.0
"""How old a reason may be that has not changed for long."""


class GrantWatch:
    """Waits for one job's grant, in a thread that nobody waits for."""

    def __init__(self, ask: Callable[[float, bool], Job]) -> None:
        """Ask from now on.

        Args:
            ask: Returns the job once it waits no longer or so many seconds are over, with its reason if that is wanted.
        """
        self._ask = ask
        self._is_over = threading.Event()
        self._error: PgpuError | None = None
        self._reason = ""
        threading.Thread(target=self._follow, daemon=True).start()

    def still_waits(self, timeout_seconds: float) -> str | None:
        """Rest until the job waits no longer, at most so long; see `Client.still_waits`.

        Raises:
            PgpuError: The server refused to say, or cannot be reached.
        """
        if not self._is_over.wait(timeout_seconds):
            return self._reason
        if self._error is not None:
            raise self._error
        return None

    def _follow(self) -> None:
        try:
            job = self._ask(_FIRST_SECONDS, False)  # noqa: FBT003 - a callable's arguments have no names
            pause_seconds = 0.0
            while job.state is JobState.WAITING:
                job = self._ask(pause_seconds, True)  # noqa: FBT003 - likewise
                is_old = job.reason == self._reason
                pause_seconds = (
                    min(max(2 * pause_seconds, _SHORTEST_SECONDS), _LONGEST_SECONDS) if is_old else _SHORTEST_SECONDS
                )
                self._reason = job.reason or ""
        except PgpuError as exc:
            self._error = exc
        finally:
            self._is_over.set()


def require_grant(job: Job) -> Job:
    """Return a job that ended, unless it was never granted.

    Raises:
        WaitTimeoutError: Its wait ran out.
        CancelledError: It was cancelled while it waited.
    """
    if job.wait_timed_out:
        again = f" for try {job.attempt}" if job.attempt > 1 else ""
        raise WaitTimeoutError(f"job {job.id} was not granted in time{again}")
    if job.state is JobState.CANCELLED:
        raise CancelledError(f"job {job.id} was cancelled")
    return job
