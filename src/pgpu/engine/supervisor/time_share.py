"""Keeps a job's share of its GPUs' time as the ledger has it, and as whoever is beside it now makes necessary."""

from collections.abc import Sequence

from pgpu.enforcement import Enforcer
from pgpu.enforcement.compute_word import ComputeWord
from pgpu.engine.leases.lease_resize import compute_words
from pgpu.ledger import Entry
from pgpu.model import Job


class TimeShare:
    """What one job's limit file says of compute; others write there, too, so nothing is remembered of it."""

    def __init__(self, enforcer: Enforcer) -> None:
        self._enforcer = enforcer

    def follow(self, job: Job, holding: Sequence[Entry]) -> None:
        """Write it again where it is no longer so.

        Args:
            job: As the ledger has it now.
            holding: Every job that holds a lease.

        Raises:
            PgpuError: The limit cannot be written.
        """
        words = compute_words(job, holding)
        if job.lease is not None and _without_holds(words) != _without_holds(self._enforcer.words(job.lease)):
            self._enforcer.set_compute(job.lease, words)


def _without_holds(words: Sequence[ComputeWord]) -> list[int]:
    return [word.without_holds.packed for word in words]
