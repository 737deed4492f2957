"""Detects once a second that a supervised job's ledger was removed, or was replaced by one without the job.

It is a check of its own because all other accesses to the ledger retry or log their errors: a temporary error, such as a full
disk, must end no job. The caller decides what happens to the job.
"""

from contextlib import suppress

from pgpu.engine.engine import Engine
from pgpu.engine.event_loop import EventLoop, Timer
from pgpu.errors import JobNotFoundError, LedgerError, LedgerGoneError


class Standing:
    """The entry of one job in its ledger."""

    def __init__(self, engine: Engine, loop: EventLoop, job_id: str) -> None:
        """Start the checks; the loop raises `LedgerGoneError` once the job's entry is gone."""
        self._engine = engine
        self._loop = loop
        self._id = job_id
        self.entry = engine.ledger.cached(lambda: engine.ledger.entry(job_id))
        """Reads the job's entry; one for all that look at it each second."""

        self._timer: Timer = loop.call_on_beat(self._look)

    def close(self) -> None:
        """Stop the checks."""
        self._timer.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_on_beat(self._look)
        ledger = self._engine.ledger
        ledger.refuse_if_gone()
        try:
            with suppress(LedgerError):
                self.entry.get()
        except JobNotFoundError as exc:
            raise LedgerGoneError(f"the ledger {ledger.path} was replaced, and has no job {self._id}") from exc
