"""Writes a job's share of its GPUs' time into its limit file when the ledger, or the set of jobs beside it, changes."""

from collections.abc import Sequence

from pgpu.enforcement import Enforcer
from pgpu.enforcement.compute_word import ComputeWord
from pgpu.engine.leases.lease_resize import compute_words
from pgpu.ledger import Entry
from pgpu.model import Job


class TimeShare:
    """The compute words of one job's limit file. Other processes write them too, so they are read each time, not cached."""

    def __init__(self, enforcer: Enforcer) -> None:
        self._enforcer = enforcer

    def follow(self, job: Job, paced: Sequence[Entry]) -> None:
        """Write the compute words again if they differ from the ledger.

        Args:
            job: Its current entry in the ledger.
            paced: As for `compute_words`.

        Raises:
            PgpuError: The limit cannot be written.
        """
        words = compute_words(job, paced)
        if job.lease is not None and _without_holds(words) != _without_holds(self._enforcer.words(job.lease)):
            self._enforcer.set_compute(job.lease, words)


def _without_holds(words: Sequence[ComputeWord]) -> list[int]:
    return [word.without_holds.packed for word in words]
