"""Sees to it that a supervisor ends once the ledger that it works for is gone, or knows nothing of its job.

It looks by itself, since what a job needs of the ledger is asked for patiently and by many: a disk that is full for a while
must end nobody. It refuses to say what becomes of the job.
"""

from contextlib import suppress

from pgpu.engine.engine import Engine
from pgpu.engine.event_loop import EventLoop, Timer
from pgpu.errors import JobNotFoundError, LedgerError, LedgerGoneError

LOOK_SECONDS = 1.0


class Standing:
    """One job's in its ledger."""

    def __init__(self, engine: Engine, loop: EventLoop, job_id: str) -> None:
        """Look from now on; the loop raises `LedgerGoneError` once the job's entry is gone."""
        self._engine = engine
        self._loop = loop
        self._id = job_id
        self._timer: Timer = loop.call_later(LOOK_SECONDS, self._look)

    def close(self) -> None:
        """Look no more: what is left to be done needs no ledger."""
        self._timer.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
        ledger = self._engine.ledger
        ledger.refuse_if_gone()
        try:
            with suppress(LedgerError):
                ledger.entry(self._id)
        except JobNotFoundError as exc:
            raise LedgerGoneError(f"the ledger {ledger.path} is another one now, without job {self._id}") from exc
